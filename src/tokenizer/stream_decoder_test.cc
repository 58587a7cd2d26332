#include <gtest/gtest.h>

#include "core/rng.h"
#include "core/text.h"
#include "tokenizer/tokenizer_testing.h"
#include "tokenizer/unicode.h"

namespace tensorcache::tokenizer {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";

// What comes out after each byte, and at the end.
std::vector<std::string> Stream(std::string_view bytes) {
  StreamDecoder decoder(MakeByteTokenizer());
  std::vector<std::string> pieces;
  for (const char byte : bytes) {
    pieces.emplace_back();
    EXPECT_TRUE(decoder.Push(static_cast<uint8_t>(byte), &pieces.back()).ok());
  }
  pieces.emplace_back();
  EXPECT_TRUE(decoder.Finish(&pieces.back()).ok());
  return pieces;
}

using Pieces = std::vector<std::string>;

TEST(StreamDecoder, GivesWholeCharactersAtOnce) {
  EXPECT_EQ(Stream("a\u00E9b"), (Pieces{"a", "", "\u00E9", "b", ""}));
  EXPECT_EQ(Stream("\u20AC"), (Pieces{"", "", "\u20AC", ""}));
  EXPECT_EQ(Stream("\U0001F999"), (Pieces{"", "", "", "\U0001F999", ""}));
}

TEST(StreamDecoder, ReplacesWhatCanNeverBeACharacter) {
  const std::string bad(kReplacement);
  EXPECT_EQ(Stream("\xFFz"), (Pieces{bad, "z", ""}));
  EXPECT_EQ(Stream("\xE2\x82z"), (Pieces{"", "", bad + "z", ""}));
  EXPECT_EQ(Stream("\xE2\x82\xE2\x82\xAC"), (Pieces{"", "", bad, "", "\u20AC", ""}));
  EXPECT_EQ(Stream("\xF0\x9F"), (Pieces{"", "", bad}));
  EXPECT_EQ(Stream("\xED\xA0\x80"), (Pieces{"", bad + bad, bad, ""}));
}

TEST(StreamDecoder, AnErrorChangesNothing) {
  StreamDecoder decoder(MakeByteTokenizer());
  std::string text;
  ASSERT_TRUE(decoder.Push(0xC3, &text).ok());
  EXPECT_FALSE(decoder.Push(300, &text).ok());
  ASSERT_TRUE(decoder.Push(0xA9, &text).ok());
  EXPECT_EQ(text, "\u00E9");
  EXPECT_TRUE(decoder.Finish(&text).ok());
  EXPECT_EQ(text, "\u00E9");
}

TEST(StreamDecoder, IsAlwaysUtf8AndTheSameHoweverItIsCut) {
  // Tokens of several bytes that end and begin within characters.
  const auto tokenizer =
      TrainByteLevelBpe(std::vector<std::string_view>{"\u00E9\u00E9\u00E9\u00E8\u00E8"}, 300).value();
  Rng rng(1, 0);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<int32_t> tokens(20);
    for (int32_t& token : tokens) token = static_cast<int32_t>(rng.NextU32() % tokenizer->vocab_size());
    StreamDecoder decoder(tokenizer);
    std::string text;
    for (const int32_t token : tokens) {
      ASSERT_TRUE(decoder.Push(token, &text).ok());
      ASSERT_TRUE(IsValidUtf8(text));
    }
    EXPECT_TRUE(decoder.Finish(&text).ok());
    std::string expected;
    for (const std::string& piece : Stream(DecodeOrFail(*tokenizer, tokens))) expected += piece;
    EXPECT_EQ(text, expected);
  }
}

TEST(StreamDecoder, WithoutATokenizerThereIsNoText) {
  StreamDecoder decoder(nullptr);
  std::string text;
  EXPECT_EQ(decoder.Push(1, &text).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace tensorcache::tokenizer
