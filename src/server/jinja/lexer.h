// A template as a row of tokens: text, and what stands in {{ }} and {% %}.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tensorcache::server::jinja {

struct Token {
  enum class Kind {
    kText,
    kOutputBegin,
    kOutputEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kSign,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 0;
};

// With trim_blocks and lstrip_blocks, as Hugging Face's library has them. Ends with a token kEnd. Throws TemplateError.
std::vector<Token> Tokenize(std::string_view source);

}  // namespace tensorcache::server::jinja
