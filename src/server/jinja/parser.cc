// Recursive descent over the lexer's tokens, with Jinja's precedence.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "server/jinja/lexer.h"
#include "server/jinja/syntax.h"

namespace tensorcache::server::jinja {
namespace {

using Kind = Token::Kind;

// Of parts in parts; far more than templates have.
constexpr int kDeepest = 100;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Block Run() {
    Block block = ParseBlock({});
    if (Now().kind != Kind::kEnd) Fail("this end has no beginning");
    return block;
  }

 private:
  // Counts how deep the parser is inside itself.
  class Depth {
   public:
    explicit Depth(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kDeepest) parser_.Fail("nested too deeply");
    }
    ~Depth() { --parser_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    Parser& parser_;
  };

  const Token& Now() const { return tokens_[at_]; }
  const Token& Next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token Take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool SeesSign(std::string_view sign) const { return Now().kind == Kind::kSign && Now().text == sign; }
  bool SeesName(std::string_view name) const { return Now().kind == Kind::kName && Now().text == name; }
  bool TakeSign(std::string_view sign) { return SeesSign(sign) && (Take(), true); }
  bool TakeName(std::string_view name) { return SeesName(name) && (Take(), true); }
  [[noreturn]] void Fail(const std::string& problem) const {
    throw TemplateError(fmt::format("line {}: {}", Now().line, problem));
  }
  void WantSign(std::string_view sign) {
    if (!TakeSign(sign)) Fail(fmt::format("expected '{}'", sign));
  }
  void WantBlockEnd() {
    if (Take().kind != Kind::kBlockEnd) {
      --at_;
      Fail("expected the end of the tag, %}");
    }
  }
  std::string WantName() {
    if (Now().kind != Kind::kName) Fail("expected a name");
    return Take().text;
  }

  // ----- statements ---------------------------------------------------------------------------------------------------

  bool SeesEnd(const std::vector<std::string_view>& ends) const {
    return Now().kind == Kind::kBlockBegin && Next().kind == Kind::kName &&
           std::find(ends.begin(), ends.end(), Next().text) != ends.end();
  }

  // Up to a tag that begins with one of `ends`, which is left.
  Block ParseBlock(const std::vector<std::string_view>& ends) {
    const Depth depth(*this);
    Block block;
    while (Now().kind != Kind::kEnd && !SeesEnd(ends)) {
      auto statement = std::make_unique<Statement>();
      statement->line = Now().line;
      if (Now().kind == Kind::kText) {
        statement->text = Take().text;
      } else if (Now().kind == Kind::kOutputBegin) {
        Take();
        statement->kind = Statement::Kind::kOutput;
        statement->expression = ParseTuple();
        if (Take().kind != Kind::kOutputEnd) {
          --at_;
          Fail("expected the end of the output, }}");
        }
      } else {
        Take();
        ParseTag(statement.get());
      }
      block.push_back(std::move(statement));
    }
    if (Now().kind == Kind::kEnd && !ends.empty()) Fail(fmt::format("{{% {} %}} is missing", ends.back()));
    return block;
  }

  // The rest of the tag `name`, and its end.
  void EndOf(std::string_view name) {
    Take();
    if (!TakeName(name)) Fail(fmt::format("expected {{% {} %}}", name));
    WantBlockEnd();
  }

  void ParseTag(Statement* statement) {
    const std::string name = WantName();
    if (name == "if") return ParseIf(statement);
    if (name == "for") return ParseFor(statement);
    if (name == "set") return ParseSet(statement);
    if (name == "macro") return ParseMacro(statement);
    if (name == "generation") {  // marks what a model writes, for those who train it
      WantBlockEnd();
      statement->kind = Statement::Kind::kBlock;
      statement->body = ParseBlock({"endgeneration"});
      return EndOf("endgeneration");
    }
    if (name == "break" || name == "continue") {
      statement->kind = name == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue;
      if (loops_ == 0) Fail(fmt::format("{{% {} %}} outside of a loop", name));
      return WantBlockEnd();
    }
    Fail(fmt::format("{{% {} %}} is not supported", name));
  }

  void ParseIf(Statement* statement) {
    statement->kind = Statement::Kind::kIf;
    statement->expression = ParseTuple();
    WantBlockEnd();
    statement->body = ParseBlock({"elif", "else", "endif"});
    Take();
    if (TakeName("elif")) {
      const Depth depth(*this);
      auto inner = std::make_unique<Statement>();
      inner->line = Now().line;
      ParseIf(inner.get());
      statement->otherwise.push_back(std::move(inner));
      return;
    }
    if (TakeName("else")) {
      WantBlockEnd();
      statement->otherwise = ParseBlock({"endif"});
      Take();
    }
    if (!TakeName("endif")) Fail("expected {% endif %}");
    WantBlockEnd();
  }

  void ParseFor(Statement* statement) {
    statement->kind = Statement::Kind::kFor;
    statement->names = ParseTargets();
    if (!TakeName("in")) Fail("expected 'in'");
    statement->expression = ParseOr();
    if (SeesSign(",")) Fail("a list without brackets is not supported here");
    if (TakeName("if")) statement->condition = ParseExpression();
    WantBlockEnd();
    ++loops_;
    statement->body = ParseBlock({"else", "endfor"});
    --loops_;
    if (Next().text == "else") {
      Take();
      Take();
      WantBlockEnd();
      statement->otherwise = ParseBlock({"endfor"});
    }
    EndOf("endfor");
  }

  std::vector<std::string> ParseTargets() {
    std::vector<std::string> names;
    const bool brackets = TakeSign("(");
    do {
      if (SeesName("in") || SeesSign("=")) break;  // after a comma
      names.push_back(WantName());
    } while (TakeSign(","));
    if (brackets) WantSign(")");
    return names;
  }

  void ParseSet(Statement* statement) {
    statement->kind = Statement::Kind::kSet;
    statement->names = ParseTargets();
    if (statement->names.size() == 1 && TakeSign(".")) statement->attribute = WantName();
    if (TakeSign("=")) {
      statement->expression = ParseTuple();
      return WantBlockEnd();
    }
    if (statement->names.size() != 1 || !statement->attribute.empty()) Fail("expected '='");
    statement->kind = Statement::Kind::kSetBlock;
    if (SeesSign("|")) statement->expression = ParseFilters(nullptr);
    WantBlockEnd();
    statement->body = ParseBlock({"endset"});
    EndOf("endset");
  }

  void ParseMacro(Statement* statement) {
    statement->kind = Statement::Kind::kMacro;
    statement->names = {WantName()};
    WantSign("(");
    while (!SeesSign(")")) {
      std::string name = WantName();
      statement->parameters.emplace_back(std::move(name), TakeSign("=") ? ParseExpression() : nullptr);
      if (!SeesSign(")")) WantSign(",");
    }
    WantSign(")");
    WantBlockEnd();
    const int loops = std::exchange(loops_, 0);
    statement->body = ParseBlock({"endmacro"});
    loops_ = loops;
    EndOf("endmacro");
  }

  // ----- expressions --------------------------------------------------------------------------------------------------

  ExpressionPtr Make(Expression::Kind kind, std::string name = "") const {
    auto expression = std::make_unique<Expression>();
    expression->kind = kind;
    expression->name = std::move(name);
    expression->line = Now().line;
    return expression;
  }
  // Adds a part. Rows of operators become as deep as they are long, and whatever walks over them is recursive.
  void Add(const ExpressionPtr& to, ExpressionPtr part) const {
    constexpr int kDeepestRow = 1000;
    to->depth = std::max(to->depth, part == nullptr ? 0 : part->depth + 1);
    if (to->depth > kDeepestRow) Fail("an expression is too long");
    to->parts.push_back(std::move(part));
  }
  ExpressionPtr MakeBinary(std::string name, ExpressionPtr a, ExpressionPtr b) const {
    auto expression = Make(Expression::Kind::kBinary, std::move(name));
    Add(expression, std::move(a));
    Add(expression, std::move(b));
    return expression;
  }

  // An expression, or several with commas between: a list.
  ExpressionPtr ParseTuple() {
    ExpressionPtr first = ParseExpression();
    if (!SeesSign(",")) return first;
    auto list = Make(Expression::Kind::kList);
    Add(list, std::move(first));
    while (TakeSign(",")) {
      if (SeesSign(")") || Now().kind == Kind::kBlockEnd || Now().kind == Kind::kOutputEnd) break;
      Add(list, ParseExpression());
    }
    return list;
  }

  ExpressionPtr ParseExpression() {
    const Depth depth(*this);
    ExpressionPtr value = ParseOr();
    while (TakeName("if")) {
      auto choice = Make(Expression::Kind::kIf);
      Add(choice, ParseOr());
      Add(choice, std::move(value));
      Add(choice, TakeName("else") ? ParseExpression() : nullptr);
      value = std::move(choice);
    }
    return value;
  }

  // What binds two operands more and more tightly: one row a level.
  ExpressionPtr ParseOr() {
    ExpressionPtr value = ParseAnd();
    while (TakeName("or")) value = MakeBinary("or", std::move(value), ParseAnd());
    return value;
  }
  ExpressionPtr ParseAnd() {
    ExpressionPtr value = ParseNot();
    while (TakeName("and")) value = MakeBinary("and", std::move(value), ParseNot());
    return value;
  }
  ExpressionPtr ParseNot() {
    if (!SeesName("not")) return ParseComparison();
    const Depth depth(*this);
    Take();
    auto value = Make(Expression::Kind::kUnary, "not");
    Add(value, ParseNot());
    return value;
  }
  ExpressionPtr ParseComparison() {
    ExpressionPtr value = ParseSum();
    int count = 0;
    while (true) {
      std::string name;
      for (const std::string_view sign : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (name.empty() && SeesSign(sign)) name = sign;
      }
      if (!name.empty()) {
        Take();
      } else if (TakeName("in")) {
        name = "in";
      } else if (SeesName("not") && Next().kind == Kind::kName && Next().text == "in") {
        Take();
        Take();
        name = "not in";
      } else {
        return value;
      }
      if (++count > 1) Fail("several comparisons in a row are not supported; write 'and' between them");
      value = MakeBinary(std::move(name), std::move(value), ParseSum());
    }
  }
  template <size_t n>
  ExpressionPtr ParseRow(const std::array<std::string_view, n>& signs, ExpressionPtr (Parser::*inner)()) {
    ExpressionPtr value = (this->*inner)();
    while (Now().kind == Kind::kSign && std::find(signs.begin(), signs.end(), Now().text) != signs.end()) {
      std::string name = Take().text;
      value = MakeBinary(std::move(name), std::move(value), (this->*inner)());
    }
    return value;
  }
  ExpressionPtr ParseSum() { return ParseRow<2>({"+", "-"}, &Parser::ParseConcatenation); }
  ExpressionPtr ParseConcatenation() { return ParseRow<1>({"~"}, &Parser::ParseProduct); }
  ExpressionPtr ParseProduct() { return ParseRow<4>({"*", "/", "//", "%"}, &Parser::ParsePower); }
  ExpressionPtr ParsePower() { return ParseRow<1>({"**"}, &Parser::ParseSigned); }

  ExpressionPtr ParseSigned() { return ParseFilters(ParseSignedOnly()); }
  ExpressionPtr ParseSignedOnly() {
    if (!SeesSign("-") && !SeesSign("+")) return ParsePostfix(ParsePrimary());
    const Depth depth(*this);
    auto value = Make(Expression::Kind::kUnary, Take().text);
    Add(value, ParseSignedOnly());
    return value;
  }

  ExpressionPtr ParsePrimary() {
    const Depth depth(*this);
    auto value = Make(Expression::Kind::kLiteral);
    const Token token = Take();
    switch (token.kind) {
      case Kind::kString: {
        Text text(token.text);
        while (Now().kind == Kind::kString) text += Text(Take().text);  // neighbours are one
        value->value = Value::Of(std::move(text));
        return value;
      }
      case Kind::kInteger: {
        int64_t number = 0;
        const auto [end, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
        if (error != std::errc()) Fail("a number is too large");
        value->value = Value::Of(number);
        return value;
      }
      case Kind::kFloat: value->value = Value::Of(std::strtod(token.text.c_str(), nullptr)); return value;
      case Kind::kName: return ParseNamed(token.text, std::move(value));
      case Kind::kSign:
        if (token.text == "(") return ParseBrackets();
        if (token.text == "[") return ParseList();
        if (token.text == "{") return ParseDict();
        [[fallthrough]];
      default:
        if (at_ > 0 && token.kind != Kind::kEnd) --at_;
        Fail("expected a value");
    }
  }

  ExpressionPtr ParseNamed(const std::string& name, ExpressionPtr value) {
    if (name == "true" || name == "True") {
      value->value = Value::Of(true);
    } else if (name == "false" || name == "False") {
      value->value = Value::Of(false);
    } else if (name == "none" || name == "None") {
      value->value = Value::OfNone();
    } else {
      value->kind = Expression::Kind::kName;
      value->name = name;
    }
    return value;
  }
  ExpressionPtr ParseBrackets() {
    if (TakeSign(")")) return Make(Expression::Kind::kList);
    ExpressionPtr value = ParseTuple();
    WantSign(")");
    return value;
  }
  ExpressionPtr ParseList() {
    auto list = Make(Expression::Kind::kList);
    while (!SeesSign("]")) {
      Add(list, ParseExpression());
      if (!SeesSign("]")) WantSign(",");
    }
    Take();
    return list;
  }
  ExpressionPtr ParseDict() {
    auto dict = Make(Expression::Kind::kDict);
    while (!SeesSign("}")) {
      Add(dict, ParseExpression());
      WantSign(":");
      Add(dict, ParseExpression());
      if (!SeesSign("}")) WantSign(",");
    }
    Take();
    return dict;
  }

  ExpressionPtr ParsePostfix(ExpressionPtr value) {
    while (true) {
      if (TakeSign(".")) {
        if (Now().kind == Kind::kInteger) Fail("numbers behind a point are not supported; write [0]");
        auto attribute = Make(Expression::Kind::kAttribute, WantName());
        Add(attribute, std::move(value));
        value = std::move(attribute);
      } else if (TakeSign("[")) {
        value = ParseItem(std::move(value));
      } else if (SeesSign("(")) {
        value = ParseCall(Make(Expression::Kind::kCall), std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr ParseItem(ExpressionPtr of) {
    auto item = Make(Expression::Kind::kItem);
    Add(item, std::move(of));
    if (!SeesSign(":")) Add(item, ParseExpression());
    if (SeesSign(":")) {
      item->kind = Expression::Kind::kSlice;
      if (item->parts.size() == 1) Add(item, nullptr);
      while (TakeSign(":")) {
        if (item->parts.size() == 4) Fail("a slice has three parts at most");
        Add(item, SeesSign(":") || SeesSign("]") ? nullptr : ParseExpression());
      }
      item->parts.resize(4);
    }
    WantSign("]");
    return item;
  }

  // Adds (a, b=c) to a call, filter or test of `subject`.
  ExpressionPtr ParseCall(ExpressionPtr call, ExpressionPtr subject) {
    Add(call, std::move(subject));
    WantSign("(");
    while (!SeesSign(")")) {
      if (Now().kind == Kind::kName && Next().kind == Kind::kSign && Next().text == "=") {
        std::string name = Take().text;
        Take();
        call->named.emplace_back(std::move(name), ParseExpression());
      } else {
        if (!call->named.empty()) Fail("an argument without a name stands behind one with a name");
        Add(call, ParseExpression());
      }
      if (!SeesSign(")")) WantSign(",");
    }
    Take();
    return call;
  }

  ExpressionPtr ParseFilters(ExpressionPtr value) {
    while (true) {
      if (TakeSign("|")) {
        auto filter = Make(Expression::Kind::kFilter, WantName());
        if (SeesSign("(")) {
          value = ParseCall(std::move(filter), std::move(value));
        } else {
          Add(filter, std::move(value));
          value = std::move(filter);
        }
      } else if (TakeName("is")) {
        value = ParseTest(std::move(value));
      } else if (SeesSign("(")) {
        value = ParseCall(Make(Expression::Kind::kCall), std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr ParseTest(ExpressionPtr value) {
    const bool negated = TakeName("not");
    auto test = Make(Expression::Kind::kTest, WantName());
    test->negated = negated;
    if (SeesSign("(")) return ParseCall(std::move(test), std::move(value));
    Add(test, std::move(value));
    const Kind kind = Now().kind;
    const bool is_word = kind == Kind::kName && Now().text != "and" && Now().text != "or" && Now().text != "else" &&
                         Now().text != "is" && Now().text != "if" && Now().text != "in" && Now().text != "not";
    const bool is_value =
        kind == Kind::kString || kind == Kind::kInteger || kind == Kind::kFloat || SeesSign("[") || SeesSign("{");
    if (is_word || is_value) Add(test, ParsePostfix(ParsePrimary()));
    return test;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
};

}  // namespace

Block ParseTemplate(std::string_view source) { return Parser(Tokenize(source)).Run(); }

}  // namespace tensorcache::server::jinja
