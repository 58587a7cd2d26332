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

constexpr std::string_view kSplit = R"({{
  "type": "Sequence",
  "pretokenizers": [
   {{
    "type": "Split",
    "pattern": {{
     "Regex": {}
    }},
    "behavior": "Isolated",
    "invert": false
   }},
   {{
    "type": "ByteLevel",
    "add_prefix_space": false,
    "trim_offsets": true,
    "use_regex": false
   }}
  ]
 }})";
constexpr std::string_view kByteLevel = R"({
  "type": "ByteLevel",
  "add_prefix_space": false,
  "trim_offsets": true,
  "use_regex": true
 })";
constexpr std::string_view kAddedToken = R"(  {{
   "id": {},
   "content": {},
   "single_word": false,
   "lstrip": false,
   "rstrip": false,
   "normalized": false,
   "special": {}
  }})";
constexpr std::string_view kFile = R"({{
 "version": "1.0",
 "truncation": null,
 "padding": null,
 "added_tokens": [{added}],
 "normalizer": {normalizer},
 "pre_tokenizer": {pre_tokenizer},
 "post_processor": {byte_level},
 "decoder": {byte_level},
 "model": {{
  "type": "BPE",
  "dropout": null,
  "unk_token": null,
  "continuing_subword_prefix": null,
  "end_of_word_suffix": null,
  "fuse_unk": false,
  "byte_fallback": false,
  "ignore_merges": {ignore_merges},
  "vocab": {{
{vocabulary}
  }},
  "merges": [
{merges}
  ]
 }}
}}
)";

std::string PreTokenizerText(SplitPattern pattern) {
  if (pattern == SplitPattern::kGpt2) return std::string(kByteLevel);
  return fmt::format(kSplit, Escaped(std::string(PatternRegex(pattern))));
}

std::string AddedTokensText(std::vector<AddedToken> added) {
  std::ranges::sort(added, {}, &AddedToken::id);
  std::string text;
  for (const AddedToken& token : added) {
    text += text.empty() ? "\n" : ",\n";
    text += fmt::format(kAddedToken, token.id, Escaped(token.text), token.special);
  }
  return text.empty() ? "" : text + "\n ";
}

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

// Written by hand: an ordered JSON object looks through all its keys at every insertion, and needs memory to be destroyed.
Status SaveTokenizerJson(const BpeParts& parts, const std::string& folder) {
  return SaveTokenizerFile(
      folder, kTokenizerJson,
      fmt::format(kFile, fmt::arg("added", AddedTokensText(parts.added)),
                  fmt::arg("normalizer", parts.nfc ? "{\n  \"type\": \"NFC\"\n }" : "null"),
                  fmt::arg("pre_tokenizer", PreTokenizerText(parts.pattern)), fmt::arg("byte_level", kByteLevel),
                  fmt::arg("ignore_merges", parts.ignore_merges), fmt::arg("vocabulary", VocabularyText(parts)),
                  fmt::arg("merges", MergesText(parts))));
}

}  // namespace tensorcache::tokenizer
