#include "tokenizer/piece_bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/rng.h"
#include "tokenizer/unicode.h"

namespace tensorcache::tokenizer {
namespace {

using Tokens = std::vector<int32_t>;

// Tokens are in the order of `texts`; every pair of them that makes another is a merge, in the order of the result.
PieceBpeParts MakeParts(const std::vector<std::string>& texts) {
  PieceBpeParts parts{.pieces = texts, .fuse_unknown = true};
  parts.byte_tokens.fill(-1);
  std::map<std::string, int32_t> numbers;
  for (size_t i = 0; i < texts.size(); ++i) numbers[texts[i]] = static_cast<int32_t>(i);
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t cut = 1; cut < texts[i].size(); ++cut) {
      const auto left = numbers.find(texts[i].substr(0, cut)), right = numbers.find(texts[i].substr(cut));
      if (left == numbers.end() || right == numbers.end()) continue;
      parts.merges.push_back({left->second, right->second, static_cast<int32_t>(i)});
      parts.ranks.push_back(static_cast<uint32_t>(i));
    }
  }
  return parts;
}

Tokens EncodeOrFail(const PieceBpe& bpe, std::string_view text) {
  Tokens tokens;
  const Status status = bpe.Encode(text, &tokens);
  EXPECT_TRUE(status.ok()) << status.message();
  return tokens;
}

// The definition: among all neighbours of the whole text, always the lowest rank, the leftmost among equals.
Tokens EncodePlainly(const PieceBpeParts& parts, std::string_view text) {
  Tokens tokens;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = DecodeUtf8(text, at);
    const auto found = std::ranges::find(parts.pieces, text.substr(at, c.length));
    if (found != parts.pieces.end()) {
      tokens.push_back(static_cast<int32_t>(found - parts.pieces.begin()));
    } else {
      for (int i = 0; i < c.length; ++i) tokens.push_back(parts.byte_tokens[static_cast<uint8_t>(text[at + i])]);
    }
    at += c.length;
  }
  while (true) {
    uint32_t best = UINT32_MAX;
    size_t best_at = 0, best_merge = 0;
    for (size_t at = 0; at + 1 < tokens.size(); ++at) {
      for (size_t i = 0; i < parts.merges.size(); ++i) {
        const Merge& merge = parts.merges[i];
        if (merge.left != tokens[at] || merge.right != tokens[at + 1] || parts.ranks[i] >= best) continue;
        best = parts.ranks[i];
        best_at = at;
        best_merge = i;
      }
    }
    if (best == UINT32_MAX) return tokens;
    tokens[best_at] = parts.merges[best_merge].merged;
    tokens.erase(tokens.begin() + static_cast<int64_t>(best_at) + 1);
  }
}

TEST(PieceBpe, IsTheDefinitionOnRandomVocabularies) {
  const std::vector<std::string> characters = {"a", "b", "c", " ", "\u00E9"};
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed, 0);
    const auto pick = [&](size_t n) { return rng.NextU32() % n; };
    std::vector<std::string> texts = characters;
    while (texts.size() < 24) {
      const std::string text = texts[pick(texts.size())] + texts[pick(texts.size())];
      if (text.size() <= 9 && std::ranges::find(texts, text) == texts.end()) texts.push_back(text);
    }
    PieceBpeParts parts = MakeParts(texts);
    for (size_t i = 0; i < parts.byte_tokens.size(); ++i) parts.byte_tokens[i] = static_cast<int32_t>(100 + i);
    if (seed % 3 == 1) {  // ties: the leftmost goes first, whichever the piece is
      for (uint32_t& rank : parts.ranks) rank /= 4;
    }
    parts.split_words = seed % 5 == 4;
    const PieceBpe bpe(parts);
    for (int trial = 0; trial < 40; ++trial) {
      std::string text;
      const size_t length = pick(60);
      for (size_t i = 0; i < length; ++i) text += pick(20) == 0 ? "\xFF" : characters[pick(characters.size())];
      Tokens expected;
      for (size_t at = 0; at < text.size();) {
        const size_t end = parts.split_words ? std::min(text.find(' ', at + 1), text.size()) : text.size();
        const Tokens some = EncodePlainly(parts, std::string_view(text).substr(at, end - at));
        expected.insert(expected.end(), some.begin(), some.end());
        at = end;
      }
      EXPECT_EQ(EncodeOrFail(bpe, text), expected) << seed << " '" << text << "'";
    }
  }
}

TEST(PieceBpe, UnknownCharactersAreBytesOrOneTokenOrAnError) {
  PieceBpeParts parts = MakeParts({"a", "b", "ab", "?"});
  Tokens tokens = {7};
  const Status status = PieceBpe(parts).Encode("ab\u4E00", &tokens);
  EXPECT_EQ(status.message(), "the character '\u4E00' is not in the vocabulary");
  parts.unknown = 9;
  EXPECT_EQ(EncodeOrFail(PieceBpe(parts), "\u4E00\u4E01ab\u00E9\xFF?\u00E9"), (Tokens{9, 2, 9, 3, 9}));
  parts.fuse_unknown = false;
  EXPECT_EQ(EncodeOrFail(PieceBpe(parts), "\u4E00\u4E01ab"), (Tokens{9, 9, 2}));
  // Only some of the bytes are there.
  parts.byte_tokens[0xC3] = 20;
  parts.byte_tokens[0xA9] = 21;
  EXPECT_EQ(EncodeOrFail(PieceBpe(parts), "\u00E9\u00E8\xC3"), (Tokens{20, 21, 9, 20}));
}

TEST(PieceBpe, LongTextsWithoutAnyBorder) {
  const PieceBpe bpe(MakeParts({"a", "aa", "aaaa"}));
  EXPECT_EQ(EncodeOrFail(bpe, std::string(400002, 'a')).size(), 100001);
}

}  // namespace
}  // namespace tensorcache::tokenizer
