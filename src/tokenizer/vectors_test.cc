// The published tokenizers against token numbers that another implementation gave. The files are not part of the
// repository; without them the tests are skipped. TENSORCACHE_LLAMA_SPM may name Llama 2's tokenizer.model or its folder.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "core/file.h"
#include "tokenizer/tokenizer_testing.h"

namespace tensorcache::tokenizer {
namespace {

using Tokens = std::vector<int32_t>;

const std::string kData = TENSORCACHE_SHARED_DATA;
const std::string kTokenizers = kData + "/tokenizers/";

struct Vector {
  std::string text;
  Tokens tokens;
};

// `name`.inp: texts, each ended by a line of its own; `name`.out: a line of numbers for each.
std::vector<Vector> ReadVectors(const std::string& name) {
  const std::string base = kTokenizers + "vectors/ggml-vocab-" + name + ".gguf";
  const std::string input = ReadWholeFile(base + ".inp", 1 << 20).value();
  std::istringstream output(ReadWholeFile(base + ".out", 1 << 20).value());
  const std::string_view end = "\n__ggml_vocab_test__\n";
  std::vector<Vector> vectors;
  for (size_t at = 0; at < input.size();) {
    const size_t stop = input.find(end, at);
    EXPECT_NE(stop, input.npos);
    std::string line;
    EXPECT_TRUE(std::getline(output, line));
    std::istringstream numbers(line);
    Vector vector{.text = input.substr(at, stop - at), .tokens = {}};
    for (int32_t token = 0; numbers >> token;) vector.tokens.push_back(token);
    vectors.push_back(std::move(vector));
    at = stop + end.size();
  }
  return vectors;
}

struct Published {
  const char* folder;
  const char* vectors;
  int64_t vocab_size;
  int32_t end_of_text;
  int32_t begin_of_text;
};

class Vectors : public ::testing::TestWithParam<Published> {
 protected:
  void SetUp() override {
    std::string folder = kTokenizers + GetParam().folder;
    if (const char* elsewhere = std::getenv("TENSORCACHE_LLAMA_SPM");
        elsewhere != nullptr && std::string_view(GetParam().folder) == "llama-spm") {
      folder = elsewhere;
    }
    if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
    static std::map<std::string, std::shared_ptr<const Tokenizer>> loaded;  // the large ones take a second
    if (!loaded.contains(folder)) {
      const auto tokenizer = LoadTokenizer(folder);
      ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
      loaded[folder] = *tokenizer;
    }
    tokenizer_ = loaded[folder];
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_P(Vectors, AreMet) {
  const std::vector<Vector> vectors = ReadVectors(GetParam().vectors);
  ASSERT_EQ(vectors.size(), 46);
  for (const auto& [text, tokens] : vectors) ExpectBothWays(tokenizer_, text, tokens);
}

TEST_P(Vectors, SpecialTokensAndSizes) {
  EXPECT_EQ(tokenizer_->vocab_size(), GetParam().vocab_size);
  EXPECT_EQ(tokenizer_->end_of_text(), GetParam().end_of_text);
  EXPECT_EQ(tokenizer_->begin_of_text(), GetParam().begin_of_text);
  const std::string end = DecodeOrFail(*tokenizer_, {GetParam().end_of_text});
  EXPECT_EQ(EncodeOrFail(*tokenizer_, end, {.special_tokens = true}), Tokens{GetParam().end_of_text});
  EXPECT_GT(EncodeOrFail(*tokenizer_, end).size(), 1);
}

TEST_P(Vectors, SavedItIsTheSame) {
  const TempFolder folder;
  ASSERT_TRUE(tokenizer_->Save(folder.path()).ok());
  const auto again = LoadTokenizer(folder.path());
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ((*again)->fingerprint(), tokenizer_->fingerprint());
}

INSTANTIATE_TEST_SUITE_P(Published, Vectors,
                         ::testing::Values(Published{"gpt2", "gpt-2", 50257, 50256, -1},
                                           Published{"gpt2-bpe", "gpt-2", 50257, 50256, -1},
                                           Published{"llama3", "llama-bpe", 128256, 128001, 128000},
                                           Published{"qwen2_5", "qwen2", 151665, 151643, -1},
                                           Published{"llama-spm", "llama-spm", 32000, 2, 1}),
                         [](const auto& info) {
                           std::string name = info.param.folder;
                           std::erase_if(name, [](char c) { return c == '-' || c == '_'; });
                           return name;
                         });

TEST(Gpt2, BothSpellingsAreTheSameTokenizer) {
  if (!std::filesystem::exists(kTokenizers + "gpt2-bpe")) GTEST_SKIP() << kTokenizers << "gpt2-bpe is not there";
  EXPECT_EQ((*LoadTokenizer(kTokenizers + "gpt2"))->fingerprint(),
            (*LoadTokenizer(kTokenizers + "gpt2-bpe/vocab.bpe"))->fingerprint());
}

TEST(Gpt2, ShakespeareHasTheKnownLength) {
  const std::string path = kData + "/shakespeare/input.txt";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const std::string text = ReadWholeFile(path, 1 << 22).value();
  const auto tokenizer = LoadTokenizer(kTokenizers + "gpt2").value();
  const Tokens tokens = EncodeOrFail(*tokenizer, text);
  EXPECT_EQ(tokens.size(), 338025);
  EXPECT_EQ(DecodeOrFail(*tokenizer, tokens), text);
}

}  // namespace
}  // namespace tensorcache::tokenizer
