// Files and texts that are made to be slow or large. Nothing here measures time: what these tests do takes no time worth
// naming, or hours.
#include <gtest/gtest.h>

#include <climits>

#include "core/rng.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/byte_level_bpe.h"
#include "tokenizer/piece_bpe.h"
#include "tokenizer/piece_trie.h"
#include "tokenizer/sentencepiece_testing.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/tokenizer_testing.h"

namespace tensorcache::tokenizer {
namespace {

using Tokens = std::vector<int32_t>;

std::string LoadError(std::string_view name, std::string_view content) {
  const TempFolder folder;
  const auto tokenizer = LoadTokenizer(folder.Put(name, content));
  return tokenizer.ok() ? "" : MessageOf(tokenizer.status());
}

std::string ParseError(const Json& json) {
  const auto tokenizer = ParseTokenizerJson(json);
  return tokenizer.ok() ? "" : MessageOf(tokenizer.status());
}

TEST(Hostile, AddedTokensAreFoundAsTheDefinitionSays) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed, 4);
    const auto word = [&](size_t longest) {
      std::string text;
      for (size_t i = 1 + rng.NextU32() % longest; i > 0; --i) text += static_cast<char>('a' + rng.NextU32() % 2);
      return text;
    };
    std::vector<AddedToken> tokens;
    for (int i = 0; i < 12; ++i) {
      const std::string text = word(6);
      const bool is_new = std::ranges::find(tokens, text, &AddedToken::text) == tokens.end();
      if (is_new) tokens.push_back({.id = i, .text = text, .special = rng.NextU32() % 2 == 0});
    }
    const AddedTokens added(tokens);
    for (const AddedToken& token : tokens) {
      EXPECT_EQ(added.Find(token.text), token.id);
      EXPECT_EQ(added.IsSpecial(token.id), token.special);
    }
    EXPECT_EQ(added.Find("c"), -1);
    EXPECT_FALSE(added.IsSpecial(100));
    const std::string text = word(40);
    for (const bool with_special : {false, true}) {
      for (size_t at = 0; at < text.size(); ++at) {
        int32_t expected = -1;
        size_t begin = at, longest = 0;
        for (; begin < text.size() && expected < 0; ++begin) {
          for (const AddedToken& token : tokens) {
            if ((token.special && !with_special) || token.text.size() <= longest) continue;
            if (!std::string_view(text).substr(begin).starts_with(token.text)) continue;
            expected = token.id;
            longest = token.text.size();
          }
        }
        const AddedTokens::Match match = added.Next(text, at, with_special);
        EXPECT_EQ(match.token == nullptr ? -1 : match.token->id, expected) << seed;
        EXPECT_EQ(match.begin, expected < 0 ? text.size() : begin - 1) << seed;
      }
    }
  }
}

// Each of them, compared at each place, would be 10^11 comparisons.
TEST(Hostile, ManyAddedTokensThatBeginAlike) {
  std::vector<AddedToken> tokens;
  for (int32_t i = 0; i < 100'000; ++i) tokens.push_back({.id = i, .text = "<|" + std::to_string(i) + "|>"});
  ASSERT_TRUE(CheckAddedTokens(tokens).ok());
  const AddedTokens added(tokens);
  std::string text;
  for (int i = 0; i < 300'000; ++i) text += "<|7";
  EXPECT_EQ(added.Next(text, 0, true).token, nullptr);
  text += "<|77777|>";
  const AddedTokens::Match match = added.Next(text, 0, true);
  ASSERT_NE(match.token, nullptr);
  EXPECT_EQ(match.token->id, 77777);
  EXPECT_EQ(match.begin, 900'000u);
  for (int32_t i = 0; i < 200'000; ++i) EXPECT_EQ(added.IsSpecial(i), i < 100'000);
}

TEST(Hostile, AddedTokensOfAMegabyte) {
  Json json = SmallTokenizerJson({});
  json["added_tokens"][0]["content"] = std::string(kMaxAddedToken, 'a');
  EXPECT_EQ(ParseError(json), "");
  json["added_tokens"][0]["content"] = std::string(1 << 20, 'a');
  EXPECT_NE(ParseError(json).find("has 1048576 bytes; the longest may have 512"), std::string::npos)
      << ParseError(json);
}

TEST(Hostile, TheTrieIsFollowedOnlySoFar) {
  constexpr size_t kMax = PieceTrie::kMaxSteps;
  const std::string text(5 * kMax, 'a');
  PieceTrie trie;
  trie.Insert("a", 1);
  trie.Insert(std::string(kMax, 'a'), 2);
  const auto expect = [&](size_t at, size_t end, int32_t value) {
    const PieceTrie::Match match = trie.Longest(text, at);
    EXPECT_EQ(match.end, end);
    EXPECT_EQ(match.value, value);
  };
  expect(0, kMax, 2);
  expect(4 * kMax, 5 * kMax, 2);
  expect(4 * kMax + 1, 4 * kMax + 2, 1);
  trie.Insert(std::string(3 * kMax, 'a') + "b", 3);
  expect(0, 5 * kMax, -1);
  expect(4 * kMax, 5 * kMax, 2);
}

// Pieces of 1, 2, 4, ... letters up to `longest`, and their merges.
PieceBpeParts Doubling(size_t longest) {
  PieceBpeParts parts{.pieces = {"", " "}, .unknown = 0};
  parts.byte_tokens.fill(-1);
  for (size_t size = 1; size <= longest; size *= 2) {
    const auto last = static_cast<int32_t>(parts.pieces.size()) - 1;
    if (size > 1) parts.merges.push_back({last, last, last + 1});
    parts.pieces.emplace_back(size, 'a');
  }
  return parts;
}

TEST(Hostile, PiecesOfAQuarterMegabyteInATextOfOne) {
  constexpr size_t kLongest = 1 << 18;  // token 20
  for (const bool split_words : {false, true}) {
    PieceBpeParts parts = Doubling(kLongest);
    parts.split_words = split_words;
    const PieceBpe bpe(std::move(parts));
    Tokens tokens;
    ASSERT_TRUE(bpe.Encode(std::string(4 * kLongest + 5, 'a') + " " + std::string(1027, 'a'), &tokens).ok());
    EXPECT_EQ(tokens, (Tokens{20, 20, 20, 20, 4, 2, 1, 12, 3, 2}));
  }
}

TEST(Hostile, AWordOfTenMegabytes) {
  const auto tokenizer = ParseTokenizerJson(SmallTokenizerJson({{"a", "a"}, {"aa", "aa"}})).value();
  EXPECT_EQ(EncodeOrFail(*tokenizer, std::string(10'000'003, 'a')).size(), 2'500'002u);
}

TEST(Hostile, AMillionMerges) {
  BpeParts parts;
  for (int byte = 0; byte < 256; ++byte) parts.tokens.push_back(Bytes(byte));
  // Every two bytes, then three.
  for (int32_t left = 0; parts.merges.size() < 1'000'000; ++left) {
    for (int32_t right = 0; right < 256; ++right) {
      parts.merges.push_back({left, right, static_cast<int32_t>(parts.tokens.size())});
      parts.tokens.push_back(parts.tokens[left] + parts.tokens[right]);
    }
  }
  const auto tokenizer = ByteLevelBpe::Make(std::move(parts));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(EncodeOrFail(**tokenizer, std::string("\0\0\0\0\0\0", 6)).size(), 3u);
}

TEST(Hostile, ADeepFile) {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"type\":\"Sequence\",\"normalizers\":[";
  EXPECT_NE(LoadError("tokenizer.json", "{\"normalizer\":" + deep).find("nested deeper than"), std::string::npos);
}

// A few bytes must not ask for memory for two million tokens.
TEST(Hostile, ATokenFarBehindAllOthers) {
  Json json = SmallTokenizerJson({});
  json["model"]["vocab"]["zz"] = 1 << 17;
  EXPECT_EQ(ParseError(json), "");
  json["model"]["vocab"]["zz"] = (1 << 21) - 1;
  EXPECT_EQ(ParseError(json), "token 'zz' has the number 2097151 in a vocabulary of 258 tokens");
  json["model"]["byte_fallback"] = true;
  json["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}};
  json["decoder"] = {{"type", "Metaspace"}};
  EXPECT_EQ(ParseError(json), "token 'zz' has the number 2097151 in a vocabulary of 258 tokens");
}

TEST(Hostile, TextsThatGrowBeyondNumbers) {
  Json json = SmallTokenizerJson({});
  json["normalizer"] = {{"type", "NFC"}};
  const auto tokenizer = ParseTokenizerJson(json).value();
  Tokens tokens;
  const std::string_view text("x", INT_MAX / 3 + 1);  // nobody looks at it
  EXPECT_EQ(MessageOf(tokenizer->Encode(text, &tokens)),
            "a text of 715827883 bytes is too long to encode at once; cut it");
}

TEST(Hostile, LongAndManyPiecesOfAModel) {
  const auto error_of = [](std::string_view text) {
    SentencePieceFile file = BpeFile({"a", std::string(text)}, false);
    const auto read = ReadSentencePieceFile(WriteSentencePieceFile(file));
    return read.ok() ? "" : read.status().message();
  };
  EXPECT_EQ(error_of(std::string(512, 'a')), "");
  EXPECT_EQ(error_of(std::string(1 << 20, 'a')), "piece 4 has 1048576 bytes; the longest may have 512");
  const std::string piece = ProtoBytes(1, ProtoBytes(1, "a"));
  std::string many;
  for (int64_t i = 0; i <= BpeMerges::kMaxTokens; ++i) many += piece;
  const auto read = ReadSentencePieceFile(many);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.status().message(), "more than 2097152 pieces, the largest vocabulary");
}

// Each of 512 pieces can be made in as many ways as it has letters.
TEST(Hostile, PiecesWithManyMerges) {
  std::vector<std::string> texts;
  for (size_t size = 1; size <= 512; ++size) texts.emplace_back(size, 'a');
  SentencePieceFile file = BpeFile(texts, false);
  file.add_dummy_prefix = false;
  const TempFolder folder;
  folder.Put("tokenizer.model", WriteSentencePieceFile(file));
  const auto tokenizer = LoadTokenizer(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(DecodeOrFail(**tokenizer, EncodeOrFail(**tokenizer, std::string(100'000, 'a'))), std::string(100'000, 'a'));
}

}  // namespace
}  // namespace tensorcache::tokenizer
