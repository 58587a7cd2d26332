#include "tokenizer/byte_level_bpe.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/rng.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/tokenizer_testing.h"

namespace tensorcache::tokenizer {
namespace {

using Tokens = std::vector<int32_t>;

// 256 "he", 257 "ll", 258 "hell", 259 " h", 260 "o<", 261 <|endoftext|>
Json HelloJson() { return SmallTokenizerJson({{"h", "e"}, {"l", "l"}, {"he", "ll"}, {" ", "h"}, {"o", "<"}}); }

std::shared_ptr<const Tokenizer> Parse(const Json& json) {
  auto tokenizer = ParseTokenizerJson(json);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.value();
}

TEST(ByteLevelBpe, MergesByRankWithinWords) {
  const auto tokenizer = Parse(HelloJson());
  EXPECT_EQ(tokenizer->vocab_size(), 262);
  EXPECT_EQ(EncodeOrFail(*tokenizer, "hello"), (Tokens{258, 'o'}));
  EXPECT_EQ(EncodeOrFail(*tokenizer, "hell"), (Tokens{258}));
  // (h, e) goes before (space, h), so the token " h" is made only where no e follows.
  EXPECT_EQ(EncodeOrFail(*tokenizer, " hell h"), (Tokens{' ', 258, 259}));
  EXPECT_EQ(EncodeOrFail(*tokenizer, "o<"), (Tokens{'o', '<'}));  // never in one word
  EXPECT_EQ(EncodeOrFail(*tokenizer, ""), Tokens{});
}

TEST(ByteLevelBpe, AppendsAndLeavesAloneWhatIsThereOnErrors) {
  const auto tokenizer = Parse(HelloJson());
  Tokens tokens = {1};
  ASSERT_TRUE(tokenizer->Encode("he", &tokens).ok());
  EXPECT_EQ(tokens, (Tokens{1, 256}));
  std::string text = "x";
  ASSERT_TRUE(tokenizer->Decode(tokens, &text).ok());
  EXPECT_EQ(text, "x\x01he");
  EXPECT_EQ(MessageOf(tokenizer->Decode(Tokens{256, 262}, &text)), "there is no token 262 in a vocabulary of 262");
  EXPECT_FALSE(tokenizer->Decode(Tokens{-1}, &text).ok());
  EXPECT_EQ(text, "x\x01he");
}

TEST(ByteLevelBpe, SpecialTokensArePlainTextUnlessAskedFor) {
  const auto tokenizer = Parse(HelloJson());
  EXPECT_EQ(tokenizer->end_of_text(), 261);
  EXPECT_EQ(tokenizer->begin_of_text(), -1);
  EXPECT_EQ(tokenizer->FindSpecial("<|endoftext|>"), 261);
  EXPECT_EQ(tokenizer->FindSpecial("he"), -1);
  EXPECT_TRUE(tokenizer->IsSpecial(261));
  EXPECT_FALSE(tokenizer->IsSpecial(256));
  const std::string text = "he<|endoftext|><|endoftext|>he<|endoftext|";
  const Tokens plain = EncodeOrFail(*tokenizer, text);
  EXPECT_EQ(plain.size(), 2 + 2 * 13 + 12);
  EXPECT_EQ(DecodeOrFail(*tokenizer, plain), text);
  const Tokens special = EncodeOrFail(*tokenizer, text, {.special_tokens = true});
  EXPECT_EQ(special.size(), 4 + 12);
  EXPECT_EQ(Tokens(special.begin(), special.begin() + 4), (Tokens{256, 261, 261, 256}));
  EXPECT_EQ(DecodeOrFail(*tokenizer, special), text);
}

TEST(ByteLevelBpe, AddedTokensThatAreNotSpecialAreAlwaysFoundTheLongestFirst) {
  Json json = HelloJson();
  json["added_tokens"].push_back({{"id", 262}, {"content", "<t"}, {"special", false}});
  json["added_tokens"].push_back({{"id", 263}, {"content", "<tool>"}, {"special", false}});
  json["added_tokens"].push_back({{"id", 264}, {"content", "<tool>s"}, {"special", true}});
  const auto tokenizer = Parse(json);
  EXPECT_EQ(EncodeOrFail(*tokenizer, "<tool>s<tx<"), (Tokens{263, 's', 262, 'x', '<'}));
  EXPECT_EQ(EncodeOrFail(*tokenizer, "<tool>s<tx<", {.special_tokens = true}), (Tokens{264, 262, 'x', '<'}));
  EXPECT_FALSE(tokenizer->IsSpecial(263));
}

TEST(ByteLevelBpe, AddedTokensMayAlsoBeOrdinaryTokens) {
  Json json = HelloJson();
  json["added_tokens"].push_back({{"id", 256}, {"content", "he"}, {"special", true}});
  json["added_tokens"].push_back({{"id", ' '}, {"content", " "}, {"special", true}});
  const auto tokenizer = Parse(json);
  EXPECT_EQ(EncodeOrFail(*tokenizer, "hell h"), (Tokens{258, 259}));
  EXPECT_EQ(EncodeOrFail(*tokenizer, "hell h", {.special_tokens = true}), (Tokens{256, 257, ' ', 'h'}));
  const TempFolder folder;
  ASSERT_TRUE(tokenizer->Save(folder.path()).ok());
  EXPECT_EQ(EncodeOrFail(**LoadTokenizer(folder.path()), "hell h"), (Tokens{258, 259}));
}

TEST(ByteLevelBpe, IgnoreMergesTakesAWholeWordThatIsAToken) {
  Json json = HelloJson();
  json["model"]["vocab"]["\u0120hello"] = 262;  // no merge makes it
  EXPECT_EQ(EncodeOrFail(*Parse(json), " hello"), (Tokens{' ', 258, 'o'}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(EncodeOrFail(*Parse(json), " hello hello1"), (Tokens{262, 262, '1'}));
  EXPECT_EQ(EncodeOrFail(*Parse(json), " hellos"), (Tokens{' ', 258, 'o', 's'}));
}

TEST(ByteLevelBpe, NormalizesBetweenSpecialTokens) {
  Json json = HelloJson();
  json["normalizer"] = {{"type", "NFC"}};
  const auto tokenizer = Parse(json);
  EXPECT_EQ(EncodeOrFail(*tokenizer, "e\u0301"), (Tokens{0xC3, 0xA9}));
  EXPECT_EQ(EncodeOrFail(*tokenizer, "<|endoftext|>e\u0301", {.special_tokens = true}), (Tokens{261, 0xC3, 0xA9}));
}

TEST(ByteLevelBpe, BytesMayBeMissing) {
  Json json = HelloJson();
  json["model"]["vocab"].erase("x");
  const auto tokenizer = Parse(json);
  Tokens tokens = {7};
  EXPECT_EQ(MessageOf(tokenizer->Encode("hello x", &tokens)),
            "the vocabulary has no token for byte 0x78, at offset 6 of the text");
  EXPECT_EQ(tokens, Tokens{7});
  std::string text;
  EXPECT_FALSE(tokenizer->Decode(Tokens{'x'}, &text).ok());
  EXPECT_EQ(EncodeOrFail(*tokenizer, "hello"), (Tokens{258, 'o'}));
}

TEST(ByteLevelBpe, AnyBytesSurvive) {
  const auto tokenizer = Parse(HelloJson());
  Rng rng(1, 0);
  for (int trial = 0; trial < 500; ++trial) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += static_cast<char>(rng.NextU32());
    EXPECT_EQ(DecodeOrFail(*tokenizer, EncodeOrFail(*tokenizer, text)), text);
  }
}

TEST(ByteLevelBpe, SavedItIsTheSame) {
  for (const SplitPattern pattern : {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2}) {
    Json json = HelloJson();
    if (pattern != SplitPattern::kGpt2) {
      const Json split = {{"type", "Split"},
                          {"pattern", {{"Regex", PatternRegex(pattern)}}},
                          {"behavior", "Isolated"},
                          {"invert", false}};
      const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
      json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}};
      json["normalizer"] = {{"type", "NFC"}};
      json["model"]["ignore_merges"] = true;
      json["added_tokens"].push_back({{"id", 300}, {"content", "\u00E9 <\"x\">"}, {"special", false}});
      json["added_tokens"].push_back({{"id", 301}, {"content", "<|begin_of_text|>"}, {"special", true}});
      json["model"]["vocab"]["zz"] = 310;
    }
    const auto tokenizer = Parse(json);
    const TempFolder folder;
    ASSERT_TRUE(tokenizer->Save(folder.path()).ok());
    const auto again = LoadTokenizer(folder.path());
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ((*again)->fingerprint(), tokenizer->fingerprint());
    EXPECT_EQ((*again)->vocab_size(), tokenizer->vocab_size());
    EXPECT_EQ((*again)->begin_of_text(), pattern == SplitPattern::kGpt2 ? -1 : 301);
    const std::string text = "hello 1234\u00E9 <\"x\"><|endoftext|>";
    EXPECT_EQ(EncodeOrFail(**again, text), EncodeOrFail(*tokenizer, text));
  }
}

TEST(ByteLevelBpe, FingerprintsTellTokenizersApart) {
  const uint64_t fingerprint = Parse(HelloJson())->fingerprint();
  EXPECT_EQ(fingerprint, Parse(HelloJson())->fingerprint());
  Json json = HelloJson();
  std::swap(json["model"]["merges"][0], json["model"]["merges"][1]);
  EXPECT_NE(Parse(json)->fingerprint(), fingerprint);
  json = HelloJson();
  json["normalizer"] = {{"type", "NFC"}};
  EXPECT_NE(Parse(json)->fingerprint(), fingerprint);
  json = HelloJson();
  json["model"]["ignore_merges"] = true;
  EXPECT_NE(Parse(json)->fingerprint(), fingerprint);
  json = HelloJson();
  json["added_tokens"][0]["special"] = false;
  EXPECT_NE(Parse(json)->fingerprint(), fingerprint);
}

TEST(ByteLevelBpe, ThreadsShareOne) {
  const auto tokenizer = Parse(HelloJson());
  std::string text;
  for (int i = 0; i < 2000; ++i) text += " hello h" + std::to_string(i) + std::string(i % 50, 'l');
  const Tokens expected = EncodeOrFail(*tokenizer, text);
  std::vector<Tokens> results(4);
  std::vector<std::thread> threads;
  for (Tokens& result : results) threads.emplace_back([&] { result = EncodeOrFail(*tokenizer, text); });
  for (std::thread& thread : threads) thread.join();
  for (const Tokens& result : results) EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace tensorcache::tokenizer
