// Pre-tokenisation: where a text is cut into words before any merge. Each published pattern is a hand-written function
// that finds what a backtracking regex engine would find.
#pragma once

#include <cstddef>
#include <string_view>

#include "tensorcache/status.h"
#include "tokenizer/unicode.h"

namespace tensorcache::tokenizer {

enum class SplitPattern { kGpt2, kLlama3, kQwen2 };

// The regex of a pattern, as its tokenizer.json spells it.
std::string_view PatternRegex(SplitPattern pattern);
// The pattern that a regex stands for; kUnsupported for an unknown one.
Result<SplitPattern> FindPattern(std::string_view regex);

class Splitter {
 public:
  explicit Splitter(SplitPattern pattern);

  SplitPattern pattern() const { return pattern_; }
  // The end of the word that starts at `at` < text.size(). The words of a text cover it without gaps. Bytes that are not
  // UTF-8 count as characters that are no letter, number or space. Cutting a whole text takes linear time.
  size_t WordEnd(std::string_view text, size_t at) const {
    return pattern_ == SplitPattern::kGpt2 ? Gpt2WordEnd(text, at) : Llama3WordEnd(text, at);
  }

 private:
  struct Char {
    CharClass kind;
    int length;
  };

  Char At(std::string_view text, size_t at) const {
    const auto byte = static_cast<uint8_t>(text[at]);
    if (byte < 0x80) return {classes_.Of(byte), 1};
    const Utf8Char c = DecodeUtf8(text, at);
    return {classes_.Of(c.code), c.length};
  }
  bool Is(CharClass kind, std::string_view text, size_t at) const {
    return at < text.size() && At(text, at).kind == kind;
  }
  size_t RunEnd(CharClass kind, std::string_view text, size_t at) const;
  size_t SpaceEnd(std::string_view text, size_t at) const;
  size_t Gpt2WordEnd(std::string_view text, size_t at) const;
  size_t Llama3WordEnd(std::string_view text, size_t at) const;

  const CharClasses& classes_;
  SplitPattern pattern_;
  int max_digits_;  // of \p{N}{1,max}
};

}  // namespace tensorcache::tokenizer
