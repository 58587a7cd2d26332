#include "tokenizer/split.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/rng.h"

namespace tensorcache::tokenizer {
namespace {

using Words = std::vector<std::string>;

Words Split(SplitPattern pattern, std::string_view text) {
  const Splitter splitter(pattern);
  Words words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = splitter.WordEnd(text, at);
    EXPECT_GT(end, at);
    EXPECT_LE(end, text.size());
    words.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

TEST(Split, Gpt2) {
  const auto split = [](std::string_view text) { return Split(SplitPattern::kGpt2, text); };
  EXPECT_EQ(split("Hello world"), (Words{"Hello", " world"}));
  EXPECT_EQ(split("  x"), (Words{" ", " x"}));
  EXPECT_EQ(split("a  \n  b "), (Words{"a", "  \n ", " b", " "}));
  EXPECT_EQ(split("a\n\nb"), (Words{"a", "\n", "\n", "b"}));
  EXPECT_EQ(split("a\nb"), (Words{"a", "\n", "b"}));
  EXPECT_EQ(split("I'll he's x'S 'tis"), (Words{"I", "'ll", " he", "'s", " x", "'", "S", " '", "tis"}));
  EXPECT_EQ(split("''s"), (Words{"''", "s"}));
  EXPECT_EQ(split("ab12 34!? .5"), (Words{"ab", "12", " 34", "!?", " .", "5"}));
  EXPECT_EQ(split("\u00A0\u00A0\u00FCber\u3000\u4E00\u00BD"),
            (Words{"\u00A0", "\u00A0", "\u00FCber", "\u3000", "\u4E00", "\u00BD"}));
  EXPECT_EQ(split("e\u0301e"), (Words{"e", "\u0301", "e"}));
}

TEST(Split, Llama3) {
  const auto split = [](std::string_view text) { return Split(SplitPattern::kLlama3, text); };
  EXPECT_EQ(split("Hello world"), (Words{"Hello", " world"}));
  EXPECT_EQ(split("(a)\tb \u00A0c"), (Words{"(a", ")", "\tb", " ", "\u00A0c"}));
  EXPECT_EQ(split("1234567 89"), (Words{"123", "456", "7", " ", "89"}));
  EXPECT_EQ(split("He'S we'lL y'all 'REx 'r"), (Words{"He", "'S", " we", "'lL", " y", "'all", " '", "REx", " '", "r"}));
  EXPECT_EQ(split("'\u017Fa 'sa"), (Words{"'\u017F", "a", " '", "sa"}));
  EXPECT_EQ(split("x!!\r\n\ny"), (Words{"x", "!!\r\n\n", "y"}));
  EXPECT_EQ(split("a \n \n  b"), (Words{"a", " \n \n", " ", " b"}));
  EXPECT_EQ(split("a   1  "), (Words{"a", "  ", " ", "1", "  "}));
  EXPECT_EQ(split("\nab"), (Words{"\n", "ab"}));
  EXPECT_EQ(split(" !a"), (Words{" !", "a"}));
}

TEST(Split, Qwen2DiffersInDigits) {
  EXPECT_EQ(Split(SplitPattern::kQwen2, "a 12\u00BD 'Ll"), (Words{"a", " ", "1", "2", "\u00BD", " '", "Ll"}));
}

TEST(Split, InvalidBytesAreNoLetters) {
  for (const SplitPattern pattern : {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2}) {
    EXPECT_EQ(Split(pattern, "1\xFF\xC3!2"), (Words{"1", "\xFF\xC3!", "2"}));
  }
}

TEST(Split, WordsCoverAnyBytes) {
  Rng rng(1, 0);
  const std::string_view alphabet = "ab1 \n\r\t'sl!\xC3\xA9\xE2\x80\xA8\xFF";
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text, joined;
    for (int i = 0; i < 40; ++i) text += alphabet[rng.NextU32() % alphabet.size()];
    for (const SplitPattern pattern : {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2}) {
      joined.clear();
      for (const std::string& word : Split(pattern, text)) joined += word;
      ASSERT_EQ(joined, text);
    }
  }
}

TEST(Split, LongRunsAreLinear) {
  for (const SplitPattern pattern : {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2}) {
    for (const std::string_view piece : {"a", " ", "\n", " \n", "!", "'", "1", "\xFF"}) {
      std::string text;
      while (text.size() < 1'000'000) text += piece;
      EXPECT_FALSE(Split(pattern, text + "x").empty());
    }
  }
}

TEST(Split, FindsPatternsByTheirRegex) {
  for (const SplitPattern pattern : {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2}) {
    EXPECT_EQ(FindPattern(PatternRegex(pattern)).value(), pattern);
  }
  const auto unknown = FindPattern("\\w+|\\s+");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(unknown.status().message().find("'\\w+|\\s+'"), std::string::npos) << unknown.status().message();
}

}  // namespace
}  // namespace tensorcache::tokenizer
