// What a template is after parsing.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/jinja/value.h"

namespace tensorcache::server::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind {
    kLiteral,    // value
    kName,       // name
    kList,       // parts
    kDict,       // parts: key, value, key, value ...
    kAttribute,  // parts[0].name
    kItem,       // parts[0][parts[1]]
    kSlice,      // parts[0][parts[1]:parts[2]:parts[3]], null where nothing stands
    kCall,       // parts[0](parts[1...], named)
    kFilter,     // parts[0] | name(parts[1...], named)
    kTest,       // parts[0] is name(parts[1...]); negated: is not
    kUnary,      // name: "-", "+" or "not"
    kBinary,     // name: "+", "==", "and", "not in" ...
    kIf,         // parts[1] if parts[0] else parts[2] (null: undefined)
  };
  Kind kind = Kind::kLiteral;
  std::string name;
  Value value;
  bool negated = false;
  std::vector<ExpressionPtr> parts;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  int line = 0;
  int depth = 1;  // of parts in parts
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

struct Statement {
  enum class Kind {
    kText,      // text
    kOutput,    // {{ expression }}
    kIf,        // expression, body, otherwise
    kFor,       // names in expression, if condition: body; otherwise: what stands for no items
    kSet,       // names = expression; names[0].attribute = expression
    kSetBlock,  // names[0] = body, through the filter `expression` if there is one (its parts[0] is null)
    kMacro,     // names[0], parameters: body
    kBlock,     // body alone
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  std::string text;
  ExpressionPtr expression, condition;
  std::vector<std::string> names;
  std::string attribute;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // with their default values, or null
  Block body, otherwise;
  int line = 0;
};

// TemplateError, with its line, for what is no template, or not one of the subset.
Block ParseTemplate(std::string_view source);

}  // namespace tensorcache::server::jinja
