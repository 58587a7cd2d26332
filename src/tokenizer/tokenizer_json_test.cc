#include "tokenizer/tokenizer_json.h"

#include <gtest/gtest.h>

#include <functional>

#include "core/rng.h"
#include "tokenizer/tokenizer_testing.h"

namespace tensorcache::tokenizer {
namespace {

Json Small() { return SmallTokenizerJson({{"h", "e"}, {"l", "l"}, {"he", "ll"}}); }

struct Refusal {
  const char* what;
  std::function<void(Json&)> change;
  StatusCode code;
  const char* message;
};

Json SplitSequence(std::string_view regex) {
  return {{"type", "Sequence"},
          {"pretokenizers", Json::array({{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}},
                                         {{"type", "ByteLevel"}, {"use_regex", false}}})}};
}

const Refusal kRefusals[] = {
    {"no model", [](Json& j) { j.erase("model"); }, StatusCode::kCorrupt, "there is no object 'model'"},
    {"no vocab", [](Json& j) { j["model"].erase("vocab"); }, StatusCode::kCorrupt, "there is no object 'model.vocab'"},
    {"no merges", [](Json& j) { j["model"].erase("merges"); }, StatusCode::kCorrupt,
     "there is no array 'model.merges'"},
    {"WordPiece", [](Json& j) { j["model"]["type"] = "WordPiece"; }, StatusCode::kUnsupported,
     "model 'WordPiece' is not supported, only byte-level BPE and SentencePiece BPE"},
    {"byte_fallback", [](Json& j) { j["model"]["byte_fallback"] = true; }, StatusCode::kUnsupported, "byte_fallback"},
    {"suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, StatusCode::kUnsupported,
     "end_of_word_suffix"},
    {"dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }, StatusCode::kUnsupported, "dropout"},
    {"normalizer", [](Json& j) { j["normalizer"] = {{"type", "Lowercase"}}; }, StatusCode::kUnsupported,
     "normalizer 'Lowercase' is not supported, only NFC"},
    {"no pre-tokenizer", [](Json& j) { j["pre_tokenizer"] = nullptr; }, StatusCode::kUnsupported,
     "pre_tokenizer 'null' is not supported"},
    {"prefix space", [](Json& j) { j["pre_tokenizer"]["add_prefix_space"] = true; }, StatusCode::kUnsupported,
     "add_prefix_space"},
    {"no regex", [](Json& j) { j["pre_tokenizer"]["use_regex"] = false; }, StatusCode::kUnsupported,
     "use_regex = false is not supported without a Split"},
    {"pattern", [](Json& j) { j["pre_tokenizer"] = SplitSequence("\\d+"); }, StatusCode::kUnsupported,
     "the pre-tokenizer pattern '\\d+' is not one of"},
    {"behavior",
     [](Json& j) {
       j["pre_tokenizer"] = SplitSequence(PatternRegex(SplitPattern::kQwen2));
       j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
     },
     StatusCode::kUnsupported, "behavior 'Isolated'"},
    {"decoder", [](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }, StatusCode::kUnsupported,
     "decoder 'WordPiece'"},
    {"added without id", [](Json& j) { j["added_tokens"][0].erase("id"); }, StatusCode::kCorrupt, "added_tokens"},
    {"added with a huge id", [](Json& j) { j["added_tokens"][0]["id"] = 1 << 30; }, StatusCode::kCorrupt,
     "added_tokens"},
    {"added twice", [](Json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); }, StatusCode::kCorrupt,
     "added token '<|endoftext|>' is there twice"},
    {"added empty", [](Json& j) { j["added_tokens"][0]["content"] = ""; }, StatusCode::kCorrupt,
     "added token 259 is empty"},
    {"added in the place of another", [](Json& j) { j["added_tokens"][0]["id"] = 258; }, StatusCode::kCorrupt,
     "token 258 is both"},
    {"lstrip", [](Json& j) { j["added_tokens"][0]["lstrip"] = true; }, StatusCode::kUnsupported,
     "lstrip of '<|endoftext|>'"},
    {"added not an array", [](Json& j) { j["added_tokens"] = 3; }, StatusCode::kCorrupt, "not an array"},
    {"number twice", [](Json& j) { j["model"]["vocab"]["zz"] = 65; }, StatusCode::kCorrupt,
     "token 65 is both 'A' and 'zz'"},
    {"negative number", [](Json& j) { j["model"]["vocab"]["zz"] = -1; }, StatusCode::kCorrupt,
     "the number of token 'zz' is '-1'"},
    {"number as text", [](Json& j) { j["model"]["vocab"]["zz"] = "7"; }, StatusCode::kCorrupt,
     "the number of token 'zz'"},
    {"spelling", [](Json& j) { j["model"]["vocab"]["a b"] = 300; }, StatusCode::kUnsupported,
     "token 'a b' is not in the spelling of byte-level BPE"},
    {"empty token", [](Json& j) { j["model"]["vocab"][""] = 300; }, StatusCode::kUnsupported, "token ''"},
    {"empty vocabulary",
     [](Json& j) {
       j["added_tokens"] = Json::array();
       j["model"]["vocab"] = Json::object();
       j["model"]["merges"] = Json::array();
     },
     StatusCode::kCorrupt, "the vocabulary is empty"},
    {"merge of nothing", [](Json& j) { j["model"]["merges"].push_back("qu ux"); }, StatusCode::kCorrupt,
     "merge 3 of 'qu' and 'ux': the first is not in the vocabulary"},
    {"merge without result", [](Json& j) { j["model"]["merges"].push_back("a b"); }, StatusCode::kCorrupt,
     "the result is not in the vocabulary"},
    {"merge of one", [](Json& j) { j["model"]["merges"].push_back("he"); }, StatusCode::kCorrupt,
     "merge 3 is 'he'; expected two tokens with a space between"},
    {"merge of three", [](Json& j) { j["model"]["merges"].push_back("h e e"); }, StatusCode::kCorrupt, "merge 3 is"},
    {"merge of no kind", [](Json& j) { j["model"]["merges"].push_back(7); }, StatusCode::kCorrupt,
     "'7' is not a pair of tokens"},
    {"merge twice", [](Json& j) { j["model"]["merges"].push_back("h e"); }, StatusCode::kCorrupt,
     "merge 3, of 'h' and 'e', is there twice"},
};

TEST(TokenizerJson, RefusesWithAClearMessage) {
  for (const auto& [what, change, code, message] : kRefusals) {
    Json json = Small();
    change(json);
    const auto tokenizer = ParseTokenizerJson(json);
    ASSERT_FALSE(tokenizer.ok()) << what;
    EXPECT_EQ(tokenizer.status().code(), code) << what;
    EXPECT_NE(MessageOf(tokenizer.status()).find(message), std::string::npos)
        << what << ": " << tokenizer.status().message();
  }
  for (const Json& json : {Json(), Json(3), Json::array(), Json::object()}) {
    EXPECT_FALSE(ParseTokenizerJson(json).ok());
  }
}

TEST(TokenizerJson, AcceptsTheSpellingsThatAreAround) {
  const uint64_t fingerprint = ParseTokenizerJson(Small()).value()->fingerprint();
  const auto same = [&](const std::function<void(Json&)>& change) {
    Json json = Small();
    change(json);
    const auto tokenizer = ParseTokenizerJson(json);
    return tokenizer.ok() && (*tokenizer)->fingerprint() == fingerprint;
  };
  EXPECT_TRUE(same([](Json& j) { j["model"].erase("type"); }));
  EXPECT_TRUE(same([](Json& j) { j["model"]["merges"][2] = {"he", "ll"}; }));
  EXPECT_TRUE(same([](Json& j) { j["model"]["unk_token"] = "<|endoftext|>"; }));
  EXPECT_TRUE(same([](Json& j) { j["model"]["vocab"]["<|endoftext|>"] = 259; }));
  EXPECT_TRUE(same([](Json& j) { j.erase("normalizer"); }));
  EXPECT_TRUE(same([](Json& j) { j["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array()}}; }));
  EXPECT_TRUE(same([](Json& j) { j["pre_tokenizer"] = SplitSequence(PatternRegex(SplitPattern::kGpt2)); }));
  EXPECT_FALSE(same([](Json& j) { j["pre_tokenizer"] = SplitSequence(PatternRegex(SplitPattern::kLlama3)); }));
}

// Any file gives an error of one line or a tokenizer that works.
TEST(TokenizerJson, DamagedFilesDoNoHarm) {
  const std::string text = SmallTokenizerJson({{"h", "e"}}).dump();
  Rng rng(1, 0);
  int read = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    std::string damaged = text;
    for (uint32_t i = 0; i <= rng.NextU32() % 3; ++i) {
      const size_t at = rng.NextU32() % damaged.size();
      const size_t from = rng.NextU32() % text.size();
      switch (rng.NextU32() % 3) {
        case 0: damaged[at] = static_cast<char>(rng.NextU32() % 128); break;
        case 1: damaged.erase(at, 1 + rng.NextU32() % 12); break;
        default: damaged.insert(at, text.substr(from, rng.NextU32() % 12));
      }
    }
    const auto json = ParseJson(damaged, "test");
    if (!json.ok()) continue;
    const auto tokenizer = ParseTokenizerJson(*json);
    if (!tokenizer.ok()) {
      EXPECT_FALSE(MessageOf(tokenizer.status()).empty());
      continue;
    }
    ++read;
    std::vector<int32_t> tokens;
    std::string back;
    if (!(*tokenizer)->EncodeWith({.special_tokens = true}, "he\xFFllo <|endoftext|> e", &tokens).ok()) continue;
    ASSERT_TRUE((*tokenizer)->Decode(tokens, &back).ok());
    EXPECT_EQ(back, "he\xFFllo <|endoftext|> e");
  }
  EXPECT_GT(read, 0);
}

}  // namespace
}  // namespace tensorcache::tokenizer
