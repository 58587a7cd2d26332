#include "tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <unordered_map>
#include <utility>

#include "core/text.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/json_parts.h"
#include "tokenizer/merge_reader.h"
#include "tokenizer/sentencepiece_json.h"

namespace tensorcache::tokenizer {
namespace {

Status ReadNormalizer(const Json& normalizer, BpeParts* parts) {
  if (normalizer.is_null()) return OkStatus();
  const Json& list = Get(normalizer, "normalizers");
  if (TypeOf(normalizer) == "Sequence" && list.is_array()) {
    for (const Json& part : list) TC_RETURN_IF_ERROR(ReadNormalizer(part, parts));
    return OkStatus();
  }
  if (TypeOf(normalizer) != "NFC") return RefusePart("normalizer", normalizer, "NFC");
  parts->nfc = true;
  return OkStatus();
}

Status CheckByteLevel(const Json& part, bool uses_regex) {
  if (TypeOf(part) != "ByteLevel") return RefusePart("pre_tokenizer", part, "ByteLevel, or Split and ByteLevel");
  if (IsTrue(Get(part, "add_prefix_space"))) return Unsupported("pre_tokenizer: add_prefix_space is not supported");
  const Json& use_regex = Get(part, "use_regex");
  if ((use_regex.is_null() || IsTrue(use_regex)) != uses_regex) {
    return Unsupported(fmt::format("pre_tokenizer: ByteLevel with use_regex = {} is not supported {} a Split before it",
                                   !uses_regex, uses_regex ? "without" : "with"));
  }
  return OkStatus();
}

Status ReadPreTokenizer(const Json& pre_tokenizer, BpeParts* parts) {
  const Json& list = Get(pre_tokenizer, "pretokenizers");
  if (TypeOf(pre_tokenizer) != "Sequence") {
    parts->pattern = SplitPattern::kGpt2;
    return CheckByteLevel(pre_tokenizer, true);
  }
  if (!list.is_array() || list.size() != 2 || TypeOf(list[0]) != "Split") {
    return RefusePart("pre_tokenizer", list, "ByteLevel, or Split and ByteLevel");
  }
  const Json& split = list[0];
  const Json& regex = Get(Get(split, "pattern"), "Regex");
  if (!regex.is_string()) return Unsupported("pre_tokenizer: Split without pattern.Regex is not supported");
  const auto pattern = FindPattern(regex.get<std::string>());
  if (!pattern.ok()) return pattern.status();
  parts->pattern = *pattern;
  if (!IsText(Get(split, "behavior"), "Isolated") || IsTrue(Get(split, "invert"))) {
    return Unsupported("pre_tokenizer: Split is supported only with behavior 'Isolated' and without invert");
  }
  return CheckByteLevel(list[1], false);
}

}  // namespace

std::optional<int32_t> TokenNumber(const Json& json) {
  if (!json.is_number_integer()) return std::nullopt;
  const auto number = json.get<int64_t>();  // what is too large for it comes out negative
  if (number < 0 || number >= BpeMerges::kMaxTokens) return std::nullopt;
  return static_cast<int32_t>(number);
}

Status ReadVocabulary(const Json& vocabulary, BpeParts* parts) {
  const size_t count = vocabulary.size() + parts->added.size();
  const auto place = [&](int32_t number, const std::string& bytes) {
    return PlaceToken(number, bytes, count, &parts->tokens);
  };
  std::unordered_map<std::string, AddedToken*> added;
  for (AddedToken& token : parts->added) {
    added.emplace(token.text, &token);
    TC_RETURN_IF_ERROR(place(token.id, token.text));
  }
  for (const auto& [name, value] : vocabulary.items()) {
    const auto number = TokenNumber(value);
    if (!number) {
      return Corrupt(fmt::format("the number of token {} is {}; expected 0 to {}", Quoted(name), Quoted(value.dump()),
                                 BpeMerges::kMaxTokens - 1));
    }
    const auto bytes = FromByteLevel(name);
    // Added tokens that stand in the vocabulary may be spelled as themselves there.
    if (const auto same = added.find(name); same != added.end() && bytes != name) {
      TC_RETURN_IF_ERROR(place(*number, name));
      continue;
    }
    if (!bytes || bytes->empty()) {
      return Unsupported(fmt::format("token {} is not in the spelling of byte-level BPE", Quoted(name)));
    }
    TC_RETURN_IF_ERROR(place(*number, *bytes));
    if (const auto same = added.find(*bytes); same != added.end() && same->second->id == *number) {
      same->second->in_vocabulary = true;
    }
  }
  return OkStatus();
}

Result<std::shared_ptr<const Tokenizer>> ParseTokenizerJson(const Json& json, const Json& config) {
  if (IsSentencePieceJson(json)) return ParseSentencePieceJson(json, config);
  BpeParts parts;
  const Json& model = Get(json, "model");
  TC_RETURN_IF_ERROR(CheckBpeModel(model, "byte-level BPE and SentencePiece BPE"));
  TC_RETURN_IF_ERROR(ReadNormalizer(Get(json, "normalizer"), &parts));
  TC_RETURN_IF_ERROR(ReadPreTokenizer(Get(json, "pre_tokenizer"), &parts));
  if (const Json& decoder = Get(json, "decoder"); !decoder.is_null() && TypeOf(decoder) != "ByteLevel") {
    return RefusePart("decoder", decoder, "ByteLevel");
  }
  const Json& added = Get(json, "added_tokens");
  if (!added.is_null() && !added.is_array()) return Corrupt("'added_tokens' is not an array");
  for (const Json& json_token : added) {
    TC_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(json_token));
    parts.added.push_back(std::move(token));
  }
  TC_RETURN_IF_ERROR(ReadVocabulary(Get(model, "vocab"), &parts));
  MergeReader reader(parts);
  TC_RETURN_IF_ERROR(ReadJsonMerges(Get(model, "merges"), &reader));
  parts.merges = reader.TakeMerges();
  parts.ignore_merges = IsTrue(Get(model, "ignore_merges"));
  return ByteLevelBpe::Make(std::move(parts));
}

}  // namespace tensorcache::tokenizer
