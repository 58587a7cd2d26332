#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/rng.h"
#include "tokenizer/split.h"
#include "tokenizer/tokenizer_testing.h"

namespace tensorcache::tokenizer {
namespace {

using Texts = std::vector<std::string_view>;
using Word = std::vector<std::string>;

// The definition: count all pairs of all words, merge the most frequent (of equals, that of the older tokens), repeat.
// Returns the tokens behind the 256 bytes.
std::vector<std::string> Reference(const Texts& texts, size_t tokens) {
  std::vector<Word> words;
  for (const std::string_view text : texts) {
    const Splitter splitter(SplitPattern::kGpt2);
    for (size_t at = 0; at < text.size();) {
      words.emplace_back();
      for (const size_t end = splitter.WordEnd(text, at); at < end; ++at) words.back().emplace_back(1, text[at]);
    }
  }
  std::map<std::string, int> numbers;
  for (int byte = 0; byte < 256; ++byte) numbers[Bytes(byte)] = byte;
  std::vector<std::string> made;
  while (made.size() < tokens) {
    std::map<std::pair<int, int>, int> counts;
    for (const Word& word : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i) ++counts[{numbers[word[i]], numbers[word[i + 1]]}];
    }
    const auto best = std::max_element(counts.begin(), counts.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (best == counts.end() || best->second < 2) break;
    std::string merged;
    for (Word& word : words) {
      Word next;
      for (size_t i = 0; i < word.size(); ++i) {
        const bool here =
            i + 1 < word.size() && numbers[word[i]] == best->first.first && numbers[word[i + 1]] == best->first.second;
        if (here) merged = word[i] + word[i + 1];
        next.push_back(here ? merged : word[i]);
        i += here;
      }
      word = std::move(next);
    }
    if (numbers.emplace(merged, 256 + made.size()).second) made.push_back(merged);
  }
  return made;
}

std::vector<std::string> MadeTokens(const Tokenizer& tokenizer) {
  std::vector<std::string> made;
  for (int32_t token = 256; token + 1 < tokenizer.vocab_size(); ++token) {
    made.push_back(DecodeOrFail(tokenizer, {token}));
  }
  return made;
}

TEST(TrainBpe, MergesTheMostFrequentPairs) {
  const auto tokenizer = TrainByteLevelBpe(Texts{"aa ab ab ab", "abc abc"}, 259).value();
  EXPECT_EQ(tokenizer->vocab_size(), 259);
  EXPECT_EQ(MadeTokens(*tokenizer), (std::vector<std::string>{"ab", " ab"}));
  EXPECT_EQ(tokenizer->end_of_text(), 258);
  EXPECT_EQ(EncodeOrFail(*tokenizer, "ab abc"), (std::vector<int32_t>{256, 257, 'c'}));
}

TEST(TrainBpe, DoesWhatTheDefinitionSays) {
  Rng rng(1, 0);
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<std::string> texts(3);
    for (std::string& text : texts) {
      for (int i = 0; i < 150; ++i) text += "aaabbc \u00E9"[rng.NextU32() % 9];
    }
    const Texts views(texts.begin(), texts.end());
    const auto tokenizer = TrainByteLevelBpe(views, 257 + 40).value();
    ASSERT_EQ(MadeTokens(*tokenizer), Reference(views, 40));
    for (const std::string& text : texts) EXPECT_EQ(DecodeOrFail(*tokenizer, EncodeOrFail(*tokenizer, text)), text);
  }
}

TEST(TrainBpe, IsReadAgain) {
  const auto tokenizer = TrainByteLevelBpe(Texts{"the cat sat on the mat, the cat sat"}, 280).value();
  const TempFolder folder;
  ASSERT_TRUE(tokenizer->Save(folder.path()).ok());
  const auto again = LoadTokenizer(folder.path());
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ((*again)->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ((*again)->end_of_text(), tokenizer->end_of_text());
}

TEST(TrainBpe, StopsWhereNoPairOccursTwice) {
  EXPECT_EQ(TrainByteLevelBpe(Texts{"abcdef"}, 1000).value()->vocab_size(), 257);
  EXPECT_EQ(TrainByteLevelBpe(Texts{}, 1000).value()->vocab_size(), 257);
  EXPECT_EQ(MessageOf(TrainByteLevelBpe(Texts{}, 256).status()),
            "a vocabulary of 256 tokens is not possible, only 257 to 2097152");
}

TEST(TrainBpe, ManyLettersWithoutASpaceAreNoProblem) {
  Rng rng(1, 0);
  std::string text;
  for (int i = 0; i < 500'000; ++i) text += static_cast<char>('a' + rng.NextU32() % 4);
  const auto tokenizer = TrainByteLevelBpe(Texts{text}, 300).value();
  EXPECT_EQ(tokenizer->vocab_size(), 300);
  EXPECT_EQ(DecodeOrFail(*tokenizer, EncodeOrFail(*tokenizer, text)), text);
}

}  // namespace
}  // namespace tensorcache::tokenizer
