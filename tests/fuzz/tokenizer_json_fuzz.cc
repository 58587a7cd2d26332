// tokenizer.json of either kind, characters.json and bytes.json: what is read encodes and decodes any text.
#include "core/json.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/tokenizer_checks.h"
#include "tokenizer/split.h"

namespace tensorcache::fuzz {
namespace {

Json VocabularyOf(const std::vector<std::string>& tokens) {
  Json vocabulary = Json::object();
  for (const std::string& token : tokens) vocabulary[token] = vocabulary.size();
  return vocabulary;
}

Json ByteLevelJson() {
  return {{"added_tokens", Json::array({{{"id", 6}, {"content", "<|endoftext|>"}, {"special", true}},
                                        {{"id", 7}, {"content", "bb"}, {"special", false}}})},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"}, {"vocab", VocabularyOf({"a", "b", "Ġ", "ab", "Ġab", "Ã"})}, {"merges", {"a b", "Ġ ab"}}}}};
}

Json SplitJson() {
  Json json = ByteLevelJson();
  const std::string regex(tokenizer::PatternRegex(tokenizer::SplitPattern::kLlama3));
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       Json::array({{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}},
                    {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}})}};
  json["model"]["ignore_merges"] = true;
  json["model"]["merges"] = Json::array({{"a", "b"}});
  return json;
}

Json MetaspaceJson() {
  return {
      {"added_tokens", Json::array({{{"id", 0}, {"content", "<unk>"}, {"special", true}},
                                    {{"id", 1}, {"content", "<s>"}, {"special", true}}})},
      {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", false}}},
      {"decoder", {{"type", "Metaspace"}, {"replacement", "▁"}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"vocab", VocabularyOf({"<unk>", "<s>", "▁", "a", "b", "▁a", "ab", "▁ab", "<0x0A>"})},
        {"merges", {"▁ a", "a b", "▁a b"}}}}};
}

Json ReplaceJson() {
  Json json = MetaspaceJson();
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  const Json back = {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  json["pre_tokenizer"] = nullptr;
  json["normalizer"] = {{"type", "Sequence"},
                        {"normalizers", Json::array({{{"type", "Prepend"}, {"prepend", "▁"}}, replace})}};
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders", Json::array({back,
                                               {{"type", "ByteFallback"}},
                                               {{"type", "Fuse"}},
                                               {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}})}};
  json["model"]["byte_fallback"] = true;
  return json;
}

}  // namespace

// tokenizer.json, tokenizer_config.json (there is none if it is empty) and a text.
void Run(std::string_view input) {
  const auto parts = Split(input, 3);
  const std::string path = Put("tokenizer.json", parts[0]);
  Remove("tokenizer_config.json");
  if (!parts[1].empty()) Put("tokenizer_config.json", parts[1]);
  const auto tokenizer = LoadTokenizer(path);
  if (!tokenizer.ok()) return CheckMessage(tokenizer.status());
  CheckTokenizer(*tokenizer, parts[2]);
}

std::vector<std::string> Seeds() {
  const std::string config = R"({"bos_token":"<s>","eos_token":{"content":"<unk>"}})",
                    text = "ab aab\n  bb<s> é<|endoftext|>";
  return {Join({ByteLevelJson().dump(), "", "ab  abb<|endoftext|>a"}),
          Join({SplitJson().dump(), "", "ab ab\n  123"}),
          Join({MetaspaceJson().dump(), config, text}),
          Join({ReplaceJson().dump(), "", text}),
          Join({R"({"characters":"abé "})", "", "ab é"}),
          Join({R"({"bytes":256})", "", text})};
}

std::vector<std::string> Words() {
  std::vector<std::string> words = {R"("added_tokens":[)",
                                    R"("content":")",
                                    R"("special":true)",
                                    R"("normalizer":)",
                                    R"("pre_tokenizer":)",
                                    R"("decoder":)",
                                    R"("merges":[)",
                                    R"("vocab":{)",
                                    R"({"type":"NFC"})",
                                    R"("unk_token":)",
                                    R"("byte_fallback":true)",
                                    R"("fuse_unk":true)",
                                    R"("split":true)",
                                    R"("prepend_scheme":"always")",
                                    R"("ignore_merges":true)",
                                    R"("bos_token":)",
                                    R"("eos_token":)",
                                    "▁",
                                    "Ġ",
                                    "<0x41>",
                                    "2097151",
                                    "e\u0301",
                                    std::string(1, '\0')};
  for (const auto pattern : {tokenizer::SplitPattern::kGpt2, tokenizer::SplitPattern::kQwen2}) {
    words.push_back(Json(tokenizer::PatternRegex(pattern)).dump());
  }
  return words;
}

}  // namespace tensorcache::fuzz
