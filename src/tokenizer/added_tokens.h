// Tokens that are found in the text before it is cut into words: control tokens such as <|endoftext|>, and words that a
// vocabulary got later.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensorcache/status.h"

namespace tensorcache::tokenizer {

struct AddedToken {
  int32_t id = -1;
  std::string text;
  bool special = true;         // a control token: found only if asked for
  bool in_vocabulary = false;  // also an ordinary token, which merges can make
};

// Looking for a token takes the time of comparing its bytes, at every place of a text.
inline constexpr size_t kMaxAddedToken = 512;

// kCorrupt if one is empty, or a text or id is there twice; kUnsupported if one is longer than kMaxAddedToken.
Status CheckAddedTokens(std::span<const AddedToken> tokens);

// Immutable and thread-safe.
class AddedTokens {
 public:
  struct Match {
    size_t begin = 0;
    const AddedToken* token = nullptr;
  };

  // As CheckAddedTokens wants them.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  // The id of the token `text`, or -1.
  int32_t Find(std::string_view text) const;
  bool IsSpecial(int32_t id) const;
  // The first token in `text` at or after `at`, the longest of those that begin there; {text.size(), nullptr} if none.
  Match Next(std::string_view text, size_t at, bool with_special) const;

 private:
  // Some of the tokens, in the order of their texts.
  struct Index {
    std::vector<uint32_t> places;  // in tokens_
    std::vector<int32_t> shorter;  // the longest other one that each begins with, here; -1 if none
    std::array<bool, 256> starts{};
  };

  Index MakeIndex(bool with_special) const;
  // The place in `index` of the last token that is not behind `text`; -1 if there is none.
  int64_t LastUpTo(const Index& index, std::string_view text) const;
  // The longest token of `index` that `text` begins with, or nullptr.
  const AddedToken* Longest(const Index& index, std::string_view text) const;

  std::vector<AddedToken> tokens_;  // by first byte, then the longest first: fingerprints are made in this order
  Index all_;
  Index plain_;                       // without the special ones
  std::vector<int32_t> special_ids_;  // sorted
};

}  // namespace tensorcache::tokenizer
