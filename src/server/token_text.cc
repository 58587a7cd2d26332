#include "server/token_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/text.h"

namespace tensorcache::server {

std::string TokenBytes(const Tokenizer& tokenizer, int32_t previous, int32_t token) {
  std::string bytes;
  if (!tokenizer.DecodeAfter(previous, std::span(&token, 1), &bytes).ok()) return "";
  return bytes;
}

std::string TokenText(const Tokenizer& tokenizer, int32_t previous, int32_t token) {
  std::string bytes = TokenBytes(tokenizer, previous, token);
  if (IsValidUtf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return text;
}

int64_t CountCharacters(std::string_view bytes) {
  return std::ranges::count_if(bytes, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

void CompletionLogprobs::Add(const std::vector<TokenScore>& scores) {
  for (const TokenScore& score : scores) {
    tokens_.push_back(TokenText(tokenizer_, previous_, score.token));
    text_offset_.push_back(std::max<int64_t>(offset_, 0));
    if (std::isnan(score.logprob)) {
      token_logprobs_.push_back(nullptr);
      top_logprobs_.push_back(nullptr);
    } else {
      token_logprobs_.push_back(score.logprob);
      OrderedJson top = OrderedJson::object();
      // Several tokens may have one text: the likeliest stands for them.
      for (const auto& [token, logprob] : score.top) top.emplace(TokenText(tokenizer_, previous_, token), logprob);
      top.emplace(tokens_.back(), score.logprob);
      top_logprobs_.push_back(std::move(top));
    }
    offset_ += CountCharacters(TokenBytes(tokenizer_, previous_, score.token));
    previous_ = score.token;
  }
}

OrderedJson CompletionLogprobs::Take() {
  return {{"tokens", std::exchange(tokens_, {})},
          {"token_logprobs", std::exchange(token_logprobs_, OrderedJson::array())},
          {"top_logprobs", std::exchange(top_logprobs_, OrderedJson::array())},
          {"text_offset", std::exchange(text_offset_, {})}};
}

}  // namespace tensorcache::server
