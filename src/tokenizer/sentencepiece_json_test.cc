#include "tokenizer/sentencepiece_json.h"

#include <gtest/gtest.h>

#include <functional>

#include "core/file.h"
#include "core/rng.h"
#include "tokenizer/fingerprint.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/tokenizer_testing.h"

namespace tensorcache::tokenizer {
namespace {

using Tokens = std::vector<int32_t>;

// <unk>, <s>, </s>, the bytes from 3 on, characters from kFirst on, then what the merges make.
constexpr int32_t kFirst = 3 + 256;
const std::vector<std::string> kCharacters = {"\u2581", "h", "e", "l", "o", "w"};
constexpr int32_t kHello = kFirst + 6 + 3, kHelloTwice = kHello + 1;

Json Llama2Json() {
  Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}}, added = Json::array();
  for (const char* name : {"<unk>", "<s>", "</s>"}) {
    added.push_back({{"id", vocab[name]}, {"content", name}, {"special", true}, {"normalized", false}});
  }
  const char* const digits = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    vocab[std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">"] = 3 + byte;
  }
  for (const std::string& character : kCharacters) vocab[character] = vocab.size();
  Json merges = Json::array();
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"h", "e"}, {"l", "l"}, {"\u2581", "he"}, {"\u2581he", "ll"}, {"\u2581hell", "\u2581hell"}};
  for (const auto& [left, right] : pairs) {
    vocab[left + right] = vocab.size();
    merges.push_back(left + " " + right);
  }
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  const Json back = {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
  return {
      {"added_tokens", added},
      {"normalizer",
       {{"type", "Sequence"}, {"normalizers", Json::array({{{"type", "Prepend"}, {"prepend", "\u2581"}}, replace})}}},
      {"pre_tokenizer", nullptr},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders", Json::array({back,
                                  {{"type", "ByteFallback"}},
                                  {{"type", "Fuse"}},
                                  {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}})}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", vocab},
        {"merges", merges}}}};
}

Json MetaspaceJson(const std::string& scheme, bool split) {
  Json json = Llama2Json();
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", scheme}, {"split", split}};
  json["decoder"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", scheme}};
  return json;
}

std::shared_ptr<const Tokenizer> Parse(const Json& json, const Json& config = {}) {
  const auto tokenizer = ParseTokenizerJson(json, config);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return *tokenizer;
}

TEST(SentencePieceJson, EncodesAndDecodes) {
  const auto tokenizer = Parse(Llama2Json());
  const int32_t space = kFirst, o = kFirst + 4;
  EXPECT_EQ(tokenizer->kind(), "SentencePiece BPE (tokenizer.json)");
  EXPECT_EQ(EncodeOrFail(*tokenizer, ""), Tokens{});
  EXPECT_EQ(EncodeOrFail(*tokenizer, "hello"), (Tokens{kHello - 1 + 1, o}));
  EXPECT_EQ(EncodeOrFail(*tokenizer, " hello"), (Tokens{space, kHello, o}));
  // A merge beyond a space.
  EXPECT_EQ(EncodeOrFail(*tokenizer, "hell hello"), (Tokens{kHelloTwice, o}));
  EXPECT_EQ(EncodeOrFail(*tokenizer, "\n\u00E9"), (Tokens{space, 3 + 0x0A, 3 + 0xC3, 3 + 0xA9}));
  for (const std::string text :
       {"hello", " hello", "  ", "hell hello\nwow", "\u4E00\u00E9", "\xFF\xE4\xB8", "<s>", ""}) {
    EXPECT_EQ(DecodeOrFail(*tokenizer, EncodeOrFail(*tokenizer, text)), text);
  }
  // The sign for a space cannot be told from a space.
  EXPECT_EQ(DecodeOrFail(*tokenizer, EncodeOrFail(*tokenizer, "o\u2581o")), "o o");
}

TEST(SentencePieceJson, EachTextBetweenSpecialTokensBeginsWithASpace) {
  const auto tokenizer = Parse(Llama2Json());
  const Tokens expected = {1, kHello, kFirst + 4, 2, kFirst, kHello};
  EXPECT_EQ(EncodeOrFail(*tokenizer, "<s>hello</s> hell", {.special_tokens = true}), expected);
  EXPECT_EQ(DecodeOrFail(*tokenizer, expected), "<s>hello</s> hell");
  EXPECT_EQ(tokenizer->begin_of_text(), 1);
  EXPECT_EQ(tokenizer->end_of_text(), 2);
  EXPECT_TRUE(tokenizer->IsSpecial(0));
  EXPECT_EQ(tokenizer->FindSpecial("<unk>"), 0);
}

TEST(SentencePieceJson, MetaspaceSchemes) {
  const int32_t space = kFirst, he = kFirst + 6, o = kFirst + 4;
  const EncodeOptions special = {.special_tokens = true};
  const auto always = Parse(MetaspaceJson("always", false)), first = Parse(MetaspaceJson("first", false)),
             never = Parse(MetaspaceJson("never", false)), words = Parse(MetaspaceJson("always", true));
  for (const auto& tokenizer : {always, first}) {
    EXPECT_EQ(EncodeOrFail(*tokenizer, "hell"), Tokens{kHello});
    EXPECT_EQ(EncodeOrFail(*tokenizer, " hell"), Tokens{kHello});
    EXPECT_EQ(EncodeOrFail(*tokenizer, "  hell"), (Tokens{space, kHello}));
    EXPECT_EQ(EncodeOrFail(*tokenizer, "hell hell"), Tokens{kHelloTwice});
  }
  EXPECT_EQ(EncodeOrFail(*always, "<s>he", special), (Tokens{1, he + 2}));
  EXPECT_EQ(EncodeOrFail(*first, "<s>he", special), (Tokens{1, he}));
  EXPECT_EQ(EncodeOrFail(*first, "he<s>he", special), (Tokens{he + 2, 1, he}));
  EXPECT_EQ(DecodeOrFail(*first, {1, he + 2, he + 2}), "<s>he he");
  EXPECT_EQ(EncodeOrFail(*never, "he he"), (Tokens{he, he + 2}));
  EXPECT_EQ(DecodeOrFail(*never, {he + 2, o}), " heo");
  EXPECT_EQ(EncodeOrFail(*words, "hell hell"), (Tokens{kHello, kHello}));
  EXPECT_EQ(EncodeOrFail(*words, "hell  o"), (Tokens{kHello, space, space, o}));
}

TEST(SentencePieceJson, TheConfigNamesBeginAndEnd) {
  const Json config = {{"bos_token", "</s>"}, {"eos_token", {{"content", "<s>"}}}};
  const auto tokenizer = Parse(Llama2Json(), config);
  EXPECT_EQ(tokenizer->begin_of_text(), 2);
  EXPECT_EQ(tokenizer->end_of_text(), 1);
  EXPECT_EQ(tokenizer->fingerprint(), Parse(Llama2Json())->fingerprint());
  const TempFolder folder;
  ASSERT_TRUE(tokenizer->Save(folder.path()).ok());
  const auto again = LoadTokenizer(folder.path());
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ((*again)->begin_of_text(), 2);
  EXPECT_EQ((*again)->end_of_text(), 1);
  EXPECT_EQ((*again)->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(Parse(Llama2Json(), {{"bos_token", "nothing"}})->begin_of_text(), 1);
  const std::string path = folder.Put("tokenizer_config.json", "{");
  EXPECT_NE(MessageOf(LoadTokenizer(folder.path()).status()).find(path), std::string::npos);
}

TEST(SentencePieceJson, FingerprintsTellTokenizersApart) {
  std::vector<Json> variants = {Llama2Json(), MetaspaceJson("always", false), MetaspaceJson("always", true),
                                MetaspaceJson("first", false)};
  for (const auto& change : std::vector<std::function<void(Json&)>>{
           [](Json& j) { std::swap(j["model"]["merges"][0], j["model"]["merges"][1]); },
           [](Json& j) { j["model"]["fuse_unk"] = false; }, [](Json& j) { j["added_tokens"][1]["special"] = false; },
           [](Json& j) { j["normalizer"] = j["normalizer"]["normalizers"][1]; }}) {
    variants.push_back(Llama2Json());
    change(variants.back());
  }
  std::vector<uint64_t> fingerprints;
  for (const Json& json : variants) fingerprints.push_back(Parse(json)->fingerprint());
  std::ranges::sort(fingerprints);
  EXPECT_EQ(std::ranges::adjacent_find(fingerprints), fingerprints.end());
}

struct Refusal {
  std::function<void(Json&)> change;
  StatusCode code;
  const char* message;
};

const Refusal kRefusals[] = {
    {[](Json& j) { j["normalizer"] = {{"type", "Precompiled"}}; }, StatusCode::kUnsupported,
     "normalizer 'Precompiled'"},
    {[](Json& j) { j["normalizer"]["normalizers"].erase(1); }, StatusCode::kUnsupported, "Prepend without Replace"},
    {[](Json& j) { j["normalizer"]["normalizers"][0]["prepend"] = "_"; }, StatusCode::kUnsupported,
     "normalizer 'Prepend'"},
    {[](Json& j) { j["normalizer"] = nullptr; }, StatusCode::kUnsupported, "pre_tokenizer 'null' is not supported"},
    {[](Json& j) { j["pre_tokenizer"] = {{"type", "ByteLevel"}}; }, StatusCode::kUnsupported,
     "pre_tokenizer 'ByteLevel' is not supported"},
    {[](Json& j) { j = MetaspaceJson("sometimes", false); }, StatusCode::kUnsupported,
     "prepend_scheme '\"sometimes\"'"},
    {[](Json& j) {
       j = MetaspaceJson("first", false);
       j["pre_tokenizer"]["replacement"] = "_";
     },
     StatusCode::kUnsupported, "the replacement U+2581"},
    {[](Json& j) { j["decoder"]["decoders"][3]["start"] = 2; }, StatusCode::kUnsupported, "decoder 'Strip'"},
    {[](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }, StatusCode::kUnsupported, "decoder 'WordPiece'"},
    {[](Json& j) { j["model"]["type"] = "Unigram"; }, StatusCode::kUnsupported, "model 'Unigram'"},
    {[](Json& j) { j["model"]["ignore_merges"] = true; }, StatusCode::kUnsupported, "ignore_merges"},
    {[](Json& j) { j["model"]["dropout"] = 0.5; }, StatusCode::kUnsupported, "dropout"},
    {[](Json& j) { j["model"]["unk_token"] = "<nothing>"; }, StatusCode::kCorrupt,
     "model.unk_token '<nothing>' is not in the vocabulary"},
    {[](Json& j) { j["model"]["vocab"]["zz"] = 3; }, StatusCode::kCorrupt, "token 3 is both"},
    {[](Json& j) { j["model"]["vocab"]["zz"] = -3; }, StatusCode::kCorrupt, "the number of token 'zz'"},
    {[](Json& j) { j["model"]["vocab"][""] = 900; }, StatusCode::kCorrupt, "token 900 is empty"},
    {[](Json& j) { j["model"]["merges"].push_back("h e"); }, StatusCode::kCorrupt, "of 'h' and 'e', is there twice"},
    {[](Json& j) { j["model"]["merges"].push_back("h w"); }, StatusCode::kCorrupt,
     "the result is not in the vocabulary"},
    {[](Json& j) { j["model"]["merges"].push_back("<0x0A> h"); }, StatusCode::kCorrupt,
     "the first is not in the vocabulary"},
    {[](Json& j) { j["added_tokens"][1]["rstrip"] = true; }, StatusCode::kUnsupported, "rstrip of '<s>'"},
    {[](Json& j) {
       j["added_tokens"][1]["normalized"] = true;
       j["added_tokens"][1]["special"] = false;
     },
     StatusCode::kUnsupported, "normalized of '<s>'"},
    {[](Json& j) { j["added_tokens"].push_back(j["added_tokens"][1]); }, StatusCode::kCorrupt,
     "added token '<s>' is there twice"},
};

TEST(SentencePieceJson, RefusesWithAClearMessage) {
  for (const auto& [change, code, message] : kRefusals) {
    Json json = Llama2Json();
    change(json);
    const auto tokenizer = ParseTokenizerJson(json);
    ASSERT_FALSE(tokenizer.ok()) << message;
    EXPECT_EQ(tokenizer.status().code(), code) << message;
    EXPECT_NE(MessageOf(tokenizer.status()).find(message), std::string::npos) << tokenizer.status().message();
  }
}

TEST(SentencePieceJson, DamagedFilesDoNoHarm) {
  const std::string text = Llama2Json().dump();
  Rng rng(1, 0);
  int loaded = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    std::string damaged = text;
    const size_t at = rng.NextU32() % damaged.size();
    if (trial % 2 == 0) {
      damaged[at] = static_cast<char>(' ' + rng.NextU32() % 95);
    } else {
      damaged.erase(at, 1 + rng.NextU32() % 8);
    }
    const auto json = ParseJson(damaged, "damaged");
    if (!json.ok()) continue;
    const auto tokenizer = ParseTokenizerJson(*json);
    if (!tokenizer.ok()) {
      MessageOf(tokenizer.status());
      continue;
    }
    ++loaded;
    Tokens tokens;
    if ((*tokenizer)->Encode("hell hello \u00E9<s>\xFF", &tokens).ok()) DecodeOrFail(**tokenizer, tokens);
  }
  EXPECT_GT(loaded, 50);
}

// A published file whose vocabulary has no bytes and merges beyond spaces. The numbers are those that Hugging Face's
// library gives.
class TinyStories : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = std::string(TENSORCACHE_SHARED_DATA) + "/models/tinystories-656k";
    if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
    const auto tokenizer = LoadTokenizer(folder);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    tokenizer_ = *tokenizer;
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_F(TinyStories, GivesTheKnownTokens) {
  const std::vector<std::pair<std::string, Tokens>> texts = {
      {"", {}},
      {"Hello world", {80, 1288, 139, 410, 555}},
      {"Once upon a time, there was a little girl named Lily.", {80, 147, 201, 282, 215, 286, 598, 629, 10}},
      {" two  spaces ", {80, 80, 1209, 80, 415, 53, 55, 368}},
      {"\"No!\" said Tom.\nHe ran to the park; it was 3 o'clock.",
       {80, 5, 39, 67, 1528, 380, 122, 810, 1547, 455, 22, 80, 478, 14, 80, 67, 7, 582, 154, 10}},
      {"supercalifragilisticexpialidocious zzzzzzzzzzzzzzzzzzzzzzzz",
       {80,  71, 189,  91,   295,  158,  58,   244,  59,   129,  61,   114,  345,  375,  430,  383,
        121, 67, 1643, 1144, 1155, 1155, 1155, 1155, 1155, 1155, 1155, 1155, 1155, 1155, 1155, 1155}},
  };
  for (const auto& [text, tokens] : texts) ExpectBothWays(tokenizer_, text, tokens);
  const Tokens unknown = {80, 295, 58, 0, 80, 557, 0, 1032};
  EXPECT_EQ(EncodeOrFail(*tokenizer_, "caf\u00E9 na\u00EFve"), unknown);
  EXPECT_EQ(DecodeOrFail(*tokenizer_, unknown), "caf<unk> na<unk>ve");
  EXPECT_EQ(EncodeOrFail(*tokenizer_, "\t\u4E00\u4E01 x"), (Tokens{80, 0, 80, 76}));
}

TEST_F(TinyStories, KnowsItsSpecialTokens) {
  EXPECT_EQ(tokenizer_->vocab_size(), 2048);
  EXPECT_EQ(tokenizer_->begin_of_text(), 1);
  EXPECT_EQ(tokenizer_->end_of_text(), 2);
  EXPECT_EQ(tokenizer_->FindSpecial("<|end_story|>"), 2);
  const std::string text = "<|start_story|>Hello world<|end_story|>";
  const Tokens tokens = EncodeOrFail(*tokenizer_, text, {.special_tokens = true});
  EXPECT_EQ(tokens, (Tokens{1, 80, 1288, 139, 410, 555, 2}));
  EXPECT_EQ(DecodeOrFail(*tokenizer_, tokens), text);
  const TempFolder folder;
  ASSERT_TRUE(tokenizer_->Save(folder.path()).ok());
  const auto again = LoadTokenizer(folder.path());
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ((*again)->fingerprint(), tokenizer_->fingerprint());
  EXPECT_EQ((*again)->end_of_text(), 2);
}

TEST_F(TinyStories, AllOfShakespeare) {
  const std::string path = std::string(TENSORCACHE_SHARED_DATA) + "/shakespeare/input.txt";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const Tokens tokens = EncodeOrFail(*tokenizer_, ReadWholeFile(path, 1 << 22).value());
  EXPECT_EQ(tokens.size(), 501465);
  Fingerprint digest;
  for (const int32_t token : tokens) digest.Add(static_cast<uint64_t>(token));
  EXPECT_EQ(digest.value(), 0x7122ADBBB57FE8AF);
}

}  // namespace
}  // namespace tensorcache::tokenizer
