#include "tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <unordered_map>
#include <utility>

#include "core/text.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/merge_reader.h"

namespace tensorcache::tokenizer {
namespace {

const Json kNull;

// object[key], or null.
const Json& Get(const Json& object, const char* key) {
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

bool IsTrue(const Json& value) { return value.is_boolean() && value.get<bool>(); }

std::string TypeOf(const Json& object) {
  const Json& type = Get(object, "type");
  return type.is_string() ? type.get<std::string>() : "";
}

// How a part of the file is named in messages.
std::string Describe(const Json& part) {
  return Quoted(TypeOf(part).empty() ? part.dump(-1, ' ', false, Json::error_handler_t::replace) : TypeOf(part));
}

Status RefusePart(std::string_view name, const Json& part, std::string_view known) {
  return Unsupported(fmt::format("{} {} is not supported, only {}", name, Describe(part), known));
}

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
  if (Get(split, "behavior") != "Isolated" || IsTrue(Get(split, "invert"))) {
    return Unsupported("pre_tokenizer: Split is supported only with behavior 'Isolated' and without invert");
  }
  return CheckByteLevel(list[1], false);
}

Status ReadAddedToken(const Json& json, BpeParts* parts) {
  const auto id = TokenNumber(Get(json, "id"));
  const Json& content = Get(json, "content");
  if (!id || !content.is_string()) return Corrupt("added_tokens: an entry without a valid id and content");
  AddedToken token{.id = *id, .text = content, .special = IsTrue(Get(json, "special"))};
  for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
    if (IsTrue(Get(json, flag))) {
      return Unsupported(fmt::format("added_tokens: {} of {} is not supported", flag, Quoted(token.text)));
    }
  }
  parts->added.push_back(std::move(token));
  return OkStatus();
}

Status CheckModel(const Json& model) {
  if (!model.is_object()) return Corrupt("there is no object 'model'");
  // Files of the first versions have no type.
  if (!Get(model, "type").is_null() && TypeOf(model) != "BPE") return RefusePart("model", model, "byte-level BPE");
  if (!Get(model, "vocab").is_object()) return Corrupt("there is no object 'model.vocab'");
  if (!Get(model, "merges").is_array()) return Corrupt("there is no array 'model.merges'");
  if (IsTrue(Get(model, "byte_fallback"))) {
    return Unsupported("model: byte_fallback (the SentencePiece kind) is not supported, only byte-level BPE");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const Json& value = Get(model, key); !value.is_null() && value != Json("")) {
      return Unsupported(fmt::format("model: {} is not supported", key));
    }
  }
  if (const Json& dropout = Get(model, "dropout"); !dropout.is_null() && dropout != 0) {
    return Unsupported("model: dropout is not supported");
  }
  return OkStatus();
}

Status ReadMerges(const Json& merges, BpeParts* parts) {
  MergeReader reader(*parts);
  for (const Json& merge : merges) {
    if (merge.is_string()) {
      TC_RETURN_IF_ERROR(reader.Add(merge.get_ref<const std::string&>()));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      TC_RETURN_IF_ERROR(reader.Add(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()));
    } else {
      return Corrupt(fmt::format("model.merges: {} is not a pair of tokens", Describe(merge)));
    }
  }
  parts->merges = reader.TakeMerges();
  return OkStatus();
}

}  // namespace

std::optional<int32_t> TokenNumber(const Json& json) {
  if (!json.is_number_integer()) return std::nullopt;
  const auto number = json.get<int64_t>();  // what is too large for it comes out negative
  if (number < 0 || number >= BpeMerges::kMaxTokens) return std::nullopt;
  return static_cast<int32_t>(number);
}

Status ReadVocabulary(const Json& vocabulary, BpeParts* parts) {
  const auto place = [&](int32_t number, const std::string& bytes) {
    if (number >= std::ssize(parts->tokens)) parts->tokens.resize(number + 1);
    std::string& token = parts->tokens[number];
    if (!token.empty() && token != bytes) {
      return Corrupt(fmt::format("token {} is both {} and {}", number, Quoted(token), Quoted(bytes)));
    }
    token = bytes;
    return OkStatus();
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

Result<std::shared_ptr<const Tokenizer>> ParseTokenizerJson(const Json& json) {
  BpeParts parts;
  const Json& model = Get(json, "model");
  TC_RETURN_IF_ERROR(CheckModel(model));
  TC_RETURN_IF_ERROR(ReadNormalizer(Get(json, "normalizer"), &parts));
  TC_RETURN_IF_ERROR(ReadPreTokenizer(Get(json, "pre_tokenizer"), &parts));
  if (const Json& decoder = Get(json, "decoder"); !decoder.is_null() && TypeOf(decoder) != "ByteLevel") {
    return RefusePart("decoder", decoder, "ByteLevel");
  }
  const Json& added = Get(json, "added_tokens");
  if (!added.is_null() && !added.is_array()) return Corrupt("'added_tokens' is not an array");
  for (const Json& token : added) TC_RETURN_IF_ERROR(ReadAddedToken(token, &parts));
  TC_RETURN_IF_ERROR(ReadVocabulary(Get(model, "vocab"), &parts));
  TC_RETURN_IF_ERROR(ReadMerges(Get(model, "merges"), &parts));
  parts.ignore_merges = IsTrue(Get(model, "ignore_merges"));
  return ByteLevelBpe::Make(std::move(parts));
}

}  // namespace tensorcache::tokenizer
