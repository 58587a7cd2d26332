// Tokens that are found in the text before it is cut into words: control tokens such as <|endoftext|>, and words that a
// vocabulary got later.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tensorcache::tokenizer {

struct AddedToken {
  int32_t id = -1;
  std::string text;
  bool special = true;         // a control token: found only if asked for
  bool in_vocabulary = false;  // also an ordinary token, which merges can make
};

// Immutable and thread-safe.
class AddedTokens {
 public:
  struct Match {
    size_t begin = 0;
    const AddedToken* token = nullptr;
  };

  // Texts are not empty and differ.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  // The id of the token `text`, or -1.
  int32_t Find(std::string_view text) const;
  bool IsSpecial(int32_t id) const;
  // The first token in `text` at or after `at`, the longest of those that begin there; {text.size(), nullptr} if none.
  Match Next(std::string_view text, size_t at, bool with_special) const;

 private:
  std::vector<AddedToken> tokens_;     // by first byte, then the longest first
  std::array<uint32_t, 257> first_{};  // tokens that begin with byte b: [first_[b], first_[b + 1])
  bool has_plain_ = false;             // a token that is not special
};

}  // namespace tensorcache::tokenizer
