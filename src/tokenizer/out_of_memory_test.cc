// Memory that runs out at any place gives an error, never an exception, and leaves the objects as they were.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "testing/failing_allocations.h"
#include "tokenizer/sentencepiece_testing.h"
#include "tokenizer/split.h"
#include "tokenizer/tokenizer_testing.h"

namespace tensorcache::tokenizer {
namespace {

using testing::WithFewAllocations;
using Tokens = std::vector<int32_t>;
using Loaded = Result<std::shared_ptr<const Tokenizer>>;

// Longer than what std::string keeps in itself; decomposed, with a word that is merged by a heap.
const std::string kText = "hello hello <|endoftext|></s> e\u0301 \u4E00 " + std::string(50, 'l') + " hello";

void ExpectOutOfMemory(const Status& status) {
  EXPECT_EQ(status.code(), StatusCode::kIoError) << status.message();
  EXPECT_NE(status.message().find("memory"), std::string::npos) << status.message();
}

// With its parts, so that a failure there is one of the sweep, too.
Json NormalizedJson() {
  Json json = SmallTokenizerJson({{"h", "e"}, {"l", "l"}, {"he", "ll"}});
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array({{{"type", "NFC"}}})}};
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", Json::array({{{"type", "Split"},
                                      {"pattern", {{"Regex", PatternRegex(SplitPattern::kLlama3)}}},
                                      {"behavior", "Isolated"}},
                                     {{"type", "ByteLevel"}, {"use_regex", false}}})}};
  return json;
}

Json SentencePieceJson() {
  return Json::parse(R"json({
      "added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "</s>", "special": true}],
      "normalizer": {"type": "Sequence", "normalizers": [
          {"type": "Prepend", "prepend": "\u2581"},
          {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
      "pre_tokenizer": null,
      "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
      "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
                "vocab": {"<unk>": 0, "</s>": 1, "\u2581": 2, "h": 3, "e": 4, "l": 5, "he": 6, "ll": 7, "o": 8},
                "merges": ["h e", ["l", "l"]]}})json");
}

std::string ModelFile(bool by_library) {
  SentencePieceFile file = BpeFile({"\u2581h", "el", "\u2581hel", "lo", "\u2581", "h", "e", "l", "o"}, true);
  file.remove_extra_whitespaces = by_library;
  return WriteSentencePieceFile(file);
}

struct Kind {
  const char* name;
  std::vector<std::pair<std::string, std::string>> files;
};

std::vector<Kind> Kinds() {
  const Json small = SmallTokenizerJson({{"h", "e"}, {"l", "l"}});
  return {{"ByteLevel", {{"tokenizer.json", NormalizedJson().dump()}}},
          {"Gpt2",
           {{"vocab.json", small["model"]["vocab"].dump()},
            {"merges.txt", "h e\nl l\n"},
            {"tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer", "x": [1, {"y": [2]}]})"}}},
          {"SentencePieceJson",
           {{"tokenizer.json", SentencePieceJson().dump()}, {"tokenizer_config.json", R"({"eos_token": "</s>"})"}}},
          {"Model", {{"tokenizer.model", ModelFile(false)}}},
          {"Characters", {{"characters.json", Json{{"characters", "<|endoftx>/s hl\u0301\u4E00"}}.dump()}}},
          {"Bytes", {{"bytes.json", R"({"bytes": 256})"}}}};
}

class OutOfMemory : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    for (const auto& [name, content] : GetParam().files) folder_.Put(name, content);
  }

  // With all the memory that it wants.
  std::shared_ptr<const Tokenizer> Load() const {
    const Loaded tokenizer = LoadTokenizer(folder_.path());
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    return *tokenizer;
  }

  const TempFolder folder_;
};

TEST_P(OutOfMemory, Load) {
  int failures = 0;
  WithFewAllocations([&] { return LoadTokenizer(folder_.path()); },
                     [&](const Loaded& tokenizer) {
                       if (tokenizer.ok()) return;
                       ExpectOutOfMemory(tokenizer.status());
                       ++failures;
                     });
  EXPECT_GT(failures, 0);
  EXPECT_NE(Load(), nullptr);
}

TEST_P(OutOfMemory, EncodeAndDecode) {
  const auto tokenizer = Load();
  const Tokens expected = EncodeOrFail(*tokenizer, kText, {.special_tokens = true});
  const std::string expected_text = DecodeOrFail(*tokenizer, expected);
  Tokens tokens;
  const auto encode = [&] {
    tokens = Tokens();
    return tokenizer->EncodeWith({.special_tokens = true}, kText, &tokens);
  };
  WithFewAllocations(encode, [&](const Status& status) {
    if (!status.ok()) ExpectOutOfMemory(status);
    EXPECT_EQ(tokens, status.ok() ? expected : Tokens());
  });
  std::string text;
  const auto decode = [&] {
    text = std::string();
    return tokenizer->Decode(expected, &text);
  };
  WithFewAllocations(decode, [&](const Status& status) {
    if (!status.ok()) ExpectOutOfMemory(status);
    EXPECT_EQ(text, status.ok() ? expected_text : "");
  });
  EXPECT_EQ(EncodeOrFail(*tokenizer, kText, {.special_tokens = true}), expected);
}

// Each token is pushed again until there is memory for it.
TEST_P(OutOfMemory, Stream) {
  const auto tokenizer = Load();
  const Tokens tokens = EncodeOrFail(*tokenizer, kText);
  StreamDecoder decoder(tokenizer);
  std::string streamed, text;
  for (const int32_t token : tokens) {
    WithFewAllocations(
        [&] {
          text = std::string();
          return decoder.Push(token, &text);
        },
        [&](const Status& status) {
          if (status.ok()) return;
          ExpectOutOfMemory(status);
          EXPECT_EQ(text, "");
        });
    streamed += text;
  }
  EXPECT_EQ(streamed, DecodeOrFail(*tokenizer, tokens));
}

TEST_P(OutOfMemory, Save) {
  const auto tokenizer = Load();
  const TempFolder saved;
  WithFewAllocations([&] { return tokenizer->Save(saved.path()); },
                     [&](const Status& status) {
                       if (!status.ok()) ExpectOutOfMemory(status);
                     });
  EXPECT_EQ(LoadTokenizer(saved.path()).value()->fingerprint(), tokenizer->fingerprint());
}

INSTANTIATE_TEST_SUITE_P(Kinds, OutOfMemory, ::testing::ValuesIn(Kinds()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(OutOfMemoryAlone, MakeAndTrain) {
  const std::string_view text = "hello hello hello, a new world of tokens\n";
  const auto check = [](const Loaded& tokenizer) {
    if (!tokenizer.ok()) ExpectOutOfMemory(tokenizer.status());
  };
  WithFewAllocations([&] { return TrainByteLevelBpe({&text, 1}, 262); }, check);
  WithFewAllocations([&] { return MakeCharacterTokenizer(text); }, check);
  WithFewAllocations([&] { return Loaded(MakeByteTokenizer()); },
                     [](const Loaded& tokenizer) { EXPECT_TRUE(tokenizer.ok()); });
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The SentencePiece library does not survive every allocation that fails, so none may fail within it: it does not even
// begin with what has no room.
TEST(OutOfMemoryAlone, WhatTheLibraryNeedsIsAskedForFirst) {
  const TempFolder folder;
  folder.Put("tokenizer.model", ModelFile(true));
  const auto encode = [&] {
    const auto tokenizer = LoadTokenizer(folder.path()).value();
    const std::string text(4 << 20, 'h');
    Tokens tokens;
    rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0) return 1;
    limit.rlim_cur = rlim_t{1} << 29;
    if (setrlimit(RLIMIT_AS, &limit) != 0) return 2;
    if (tokenizer->Encode(text, &tokens).code() != StatusCode::kIoError || !tokens.empty()) return 3;
    rusage used;
    if (getrusage(RUSAGE_SELF, &used) != 0 || used.ru_maxrss > 200 << 10) return 4;
    return tokenizer->Encode("hello", &tokens).ok() ? 0 : 5;
  };
  EXPECT_EXIT(std::exit(encode()), ::testing::ExitedWithCode(0), "");
}
#endif

TEST(OutOfMemoryAlone, TheEndOfAStream) {
  StreamDecoder decoder(MakeByteTokenizer());
  std::string text(15, '.');  // full, so that more needs memory
  ASSERT_TRUE(decoder.Push(0xE2, &text).ok());
  int failures = 0;
  WithFewAllocations([&] { return decoder.Finish(&text); },
                     [&](const Status& status) {
                       if (status.ok()) return;
                       ExpectOutOfMemory(status);
                       EXPECT_EQ(text, std::string(15, '.'));
                       ++failures;
                     });
  EXPECT_EQ(failures, 1);
  EXPECT_EQ(text, std::string(15, '.') + "\uFFFD");
}

}  // namespace
}  // namespace tensorcache::tokenizer
