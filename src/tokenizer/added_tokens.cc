#include "tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

namespace tensorcache::tokenizer {
namespace {

uint8_t FirstByte(std::string_view text) { return static_cast<uint8_t>(text.front()); }

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::ranges::sort(tokens_, [](const AddedToken& a, const AddedToken& b) {
    if (FirstByte(a.text) != FirstByte(b.text)) return FirstByte(a.text) < FirstByte(b.text);
    return a.text.size() != b.text.size() ? a.text.size() > b.text.size() : a.text < b.text;
  });
  for (const AddedToken& token : tokens_) {
    ++first_[FirstByte(token.text) + 1];
    has_plain_ |= !token.special;
  }
  for (int byte = 0; byte < 256; ++byte) first_[byte + 1] += first_[byte];
}

int32_t AddedTokens::Find(std::string_view text) const {
  const auto found = std::ranges::find(tokens_, text, &AddedToken::text);
  return found == tokens_.end() ? -1 : found->id;
}

bool AddedTokens::IsSpecial(int32_t id) const {
  const auto found = std::ranges::find(tokens_, id, &AddedToken::id);
  return found != tokens_.end() && found->special;
}

AddedTokens::Match AddedTokens::Next(std::string_view text, size_t at, bool with_special) const {
  if (tokens_.empty() || (!with_special && !has_plain_)) return {text.size(), nullptr};
  for (; at < text.size(); ++at) {
    const uint8_t byte = FirstByte(text.substr(at));
    for (uint32_t i = first_[byte]; i < first_[byte + 1]; ++i) {
      const AddedToken& token = tokens_[i];
      if ((with_special || !token.special) && text.substr(at).starts_with(token.text)) return {at, &token};
    }
  }
  return {text.size(), nullptr};
}

}  // namespace tensorcache::tokenizer
