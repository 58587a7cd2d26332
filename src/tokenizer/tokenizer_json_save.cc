#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tokenizer/byte_level.h"
#include "tokenizer/files.h"
#include "tokenizer/tokenizer_json.h"

namespace tensorcache::tokenizer {
namespace {

std::string Escaped(const std::string& text) { return Json(text).dump(); }

OrderedJson PreTokenizerJson(SplitPattern pattern) {
  const bool is_gpt2 = pattern == SplitPattern::kGpt2;
  OrderedJson byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", is_gpt2}};
  if (is_gpt2) return byte_level;
  const OrderedJson split = {{"type", "Split"},
                             {"pattern", {{"Regex", std::string(PatternRegex(pattern))}}},
                             {"behavior", "Isolated"},
                             {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}};
}

OrderedJson AddedTokensJson(std::vector<AddedToken> added) {
  std::ranges::sort(added, {}, &AddedToken::id);
  OrderedJson list = OrderedJson::array();
  for (const AddedToken& token : added) {
    list.push_back({{"id", token.id},
                    {"content", token.text},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", token.special}});
  }
  return list;
}

// Vocabulary and merges are written by hand: an ordered JSON object looks through all its keys at every insertion.
// Tokens that are only added ones are left out at the end, and stand for themselves between others.
std::string VocabularyText(const BpeParts& parts) {
  const std::vector<bool> is_mergeable = MergeableTokens(parts);
  const auto end = std::find(is_mergeable.rbegin(), is_mergeable.rend(), true).base() - is_mergeable.begin();
  std::string text;
  for (int64_t token = 0; token < end; ++token) {
    const std::string& bytes = parts.tokens[token];
    if (bytes.empty()) continue;
    text += fmt::format("{}   {}: {}", text.empty() ? "" : ",\n",
                        Escaped(is_mergeable[token] ? ToByteLevel(bytes) : bytes), token);
  }
  return text;
}

std::string MergesText(const BpeParts& parts) {
  std::string text;
  for (const auto& [left, right, merged] : parts.merges) {
    text += fmt::format("{}   {}", text.empty() ? "" : ",\n",
                        Escaped(ToByteLevel(parts.tokens[left]) + " " + ToByteLevel(parts.tokens[right])));
  }
  return text;
}

}  // namespace

Status SaveTokenizerJson(const BpeParts& parts, const std::string& folder) {
  const OrderedJson byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const OrderedJson head = {{"version", "1.0"},
                            {"truncation", nullptr},
                            {"padding", nullptr},
                            {"added_tokens", AddedTokensJson(parts.added)},
                            {"normalizer", parts.nfc ? OrderedJson{{"type", "NFC"}} : OrderedJson(nullptr)},
                            {"pre_tokenizer", PreTokenizerJson(parts.pattern)},
                            {"post_processor", byte_level},
                            {"decoder", byte_level}};
  std::string text = head.dump(1);
  text.resize(text.rfind("\n}"));
  text += fmt::format(
      ",\n \"model\": {{\n  \"type\": \"BPE\",\n  \"dropout\": null,\n  \"unk_token\": null,\n"
      "  \"continuing_subword_prefix\": null,\n  \"end_of_word_suffix\": null,\n  \"fuse_unk\": false,\n"
      "  \"byte_fallback\": false,\n  \"ignore_merges\": {},\n",
      parts.ignore_merges);
  text += fmt::format("  \"vocab\": {{\n{}\n  }},\n  \"merges\": [\n{}\n  ]\n }}\n}}\n", VocabularyText(parts),
                      MergesText(parts));
  return SaveTokenizerFile(folder, kTokenizerJson, text);
}

}  // namespace tensorcache::tokenizer
