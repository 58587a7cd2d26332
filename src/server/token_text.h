// Tokens as text in answers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "server/token_scores.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::server {

// The bytes of a token that stands behind `previous` (-1: at the start); perhaps a part of a character.
std::string TokenBytes(const Tokenizer& tokenizer, int32_t previous, int32_t token);
// The same for people and for keys of JSON objects: bytes that are no text become "bytes:\xe2\x82", as OpenAI has it.
std::string TokenText(const Tokenizer& tokenizer, int32_t previous, int32_t token);
// Characters that begin in these bytes.
int64_t CountCharacters(std::string_view bytes);

// The `logprobs` of a completion: parallel arrays, to which tokens are added one after the other.
class CompletionLogprobs {
 public:
  explicit CompletionLogprobs(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void Add(const std::vector<TokenScore>& scores);
  // What was added since the last call.
  OrderedJson Take();
  // The token behind which the next one stands, and the characters before it.
  void SetStart(int32_t previous, int64_t offset) {
    previous_ = previous;
    offset_ = offset;
  }

 private:
  const Tokenizer& tokenizer_;
  int32_t previous_ = -1;
  int64_t offset_ = 0;
  std::vector<std::string> tokens_;
  OrderedJson token_logprobs_ = OrderedJson::array(), top_logprobs_ = OrderedJson::array();
  std::vector<int64_t> text_offset_;
};

}  // namespace tensorcache::server
