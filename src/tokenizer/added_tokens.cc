#include "tokenizer/added_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "core/text.h"

namespace tensorcache::tokenizer {
namespace {

uint8_t FirstByte(std::string_view text) { return static_cast<uint8_t>(text.front()); }

}  // namespace

Status CheckAddedTokens(std::span<const AddedToken> tokens) {
  std::unordered_set<std::string_view> texts;
  std::unordered_set<int32_t> ids;
  for (const AddedToken& token : tokens) {
    if (token.text.empty()) return Corrupt(fmt::format("added token {} is empty", token.id));
    if (token.text.size() > kMaxAddedToken) {
      return Unsupported(fmt::format("added token {} has {} bytes; the longest may have {}", Quoted(token.text),
                                     token.text.size(), kMaxAddedToken));
    }
    if (!texts.insert(token.text).second || !ids.insert(token.id).second) {
      return Corrupt(fmt::format("added token {} is there twice", Quoted(token.text)));
    }
  }
  return OkStatus();
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::ranges::sort(tokens_, [](const AddedToken& a, const AddedToken& b) {
    if (FirstByte(a.text) != FirstByte(b.text)) return FirstByte(a.text) < FirstByte(b.text);
    return a.text.size() != b.text.size() ? a.text.size() > b.text.size() : a.text < b.text;
  });
  all_ = MakeIndex(true);
  plain_ = MakeIndex(false);
  for (const AddedToken& token : tokens_) {
    if (token.special) special_ids_.push_back(token.id);
  }
  std::ranges::sort(special_ids_);
}

AddedTokens::Index AddedTokens::MakeIndex(bool with_special) const {
  Index index;
  for (uint32_t place = 0; place < tokens_.size(); ++place) {
    if (!with_special && tokens_[place].special) continue;
    index.places.push_back(place);
    index.starts[FirstByte(tokens_[place].text)] = true;
  }
  const auto text_of = [&](uint32_t place) -> std::string_view { return tokens_[place].text; };
  std::ranges::sort(index.places, {}, text_of);
  std::vector<int32_t> open;  // each begins with the one before it, and the next one perhaps with the last
  for (size_t i = 0; i < index.places.size(); ++i) {
    const std::string_view text = text_of(index.places[i]);
    while (!open.empty() && !text.starts_with(text_of(index.places[open.back()]))) open.pop_back();
    index.shorter.push_back(open.empty() ? -1 : open.back());
    open.push_back(static_cast<int32_t>(i));
  }
  return index;
}

int64_t AddedTokens::LastUpTo(const Index& index, std::string_view text) const {
  const auto text_of = [&](uint32_t place) -> std::string_view { return tokens_[place].text; };
  return std::ranges::upper_bound(index.places, text, {}, text_of) - index.places.begin() - 1;
}

// Whatever stands between a token and a text that begins with it begins with it, too. So such a token is the last one up
// to the text, or one that this one begins with.
const AddedToken* AddedTokens::Longest(const Index& index, std::string_view text) const {
  text = text.substr(0, kMaxAddedToken);
  int64_t i = LastUpTo(index, text);
  if (i < 0) return nullptr;
  const std::string_view last = tokens_[index.places[i]].text;
  const auto common = static_cast<size_t>(std::ranges::mismatch(last, text).in1 - last.begin());
  while (i >= 0 && tokens_[index.places[i]].text.size() > common) i = index.shorter[i];
  return i < 0 ? nullptr : &tokens_[index.places[i]];
}

int32_t AddedTokens::Find(std::string_view text) const {
  const int64_t i = LastUpTo(all_, text);
  return i >= 0 && tokens_[all_.places[i]].text == text ? tokens_[all_.places[i]].id : -1;
}

bool AddedTokens::IsSpecial(int32_t id) const { return std::ranges::binary_search(special_ids_, id); }

AddedTokens::Match AddedTokens::Next(std::string_view text, size_t at, bool with_special) const {
  const Index& index = with_special ? all_ : plain_;
  if (index.places.empty()) return {text.size(), nullptr};
  for (; at < text.size(); ++at) {
    if (!index.starts[static_cast<uint8_t>(text[at])]) continue;
    if (const AddedToken* token = Longest(index, text.substr(at)); token != nullptr) return {at, token};
  }
  return {text.size(), nullptr};
}

}  // namespace tensorcache::tokenizer
