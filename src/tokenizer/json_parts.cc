#include "tokenizer/json_parts.h"

#include <fmt/format.h>

#include "core/text.h"
#include "tokenizer/tokenizer_json.h"

namespace tensorcache::tokenizer {

const Json& Get(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

bool IsTrue(const Json& value) { return value.is_boolean() && value.get<bool>(); }

bool IsText(const Json& value, std::string_view text) {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

std::string_view TypeOf(const Json& object) {
  const Json& type = Get(object, "type");
  return type.is_string() ? std::string_view(type.get_ref<const std::string&>()) : "";
}

std::string Describe(const Json& part) {
  if (const std::string_view type = TypeOf(part); !type.empty()) return Quoted(type);
  return Quoted(part.dump(-1, ' ', false, Json::error_handler_t::replace));
}

Status RefusePart(std::string_view name, const Json& part, std::string_view known) {
  return Unsupported(fmt::format("{} {} is not supported, only {}", name, Describe(part), known));
}

Status PlaceToken(int32_t number, const std::string& text, size_t count, std::vector<std::string>* tokens) {
  constexpr size_t kMaxUnused = 1 << 17;
  const auto place = static_cast<size_t>(number);
  if (place >= count + kMaxUnused) {
    return Unsupported(
        fmt::format("token {} has the number {} in a vocabulary of {} tokens", Quoted(text), number, count));
  }
  if (place >= tokens->size()) tokens->resize(place + 1);
  std::string& token = (*tokens)[place];
  if (!token.empty() && token != text) {
    return Corrupt(fmt::format("token {} is both {} and {}", number, Quoted(token), Quoted(text)));
  }
  token = text;
  return OkStatus();
}

Result<AddedToken> ReadAddedToken(const Json& json) {
  const auto id = TokenNumber(Get(json, "id"));
  const Json& content = Get(json, "content");
  if (!id || !content.is_string()) return Corrupt("added_tokens: an entry without a valid id and content");
  AddedToken token{.id = *id, .text = content, .special = IsTrue(Get(json, "special"))};
  for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
    if (IsTrue(Get(json, flag))) {
      return Unsupported(fmt::format("added_tokens: {} of {} is not supported", flag, Quoted(token.text)));
    }
  }
  return token;
}

Status CheckBpeModel(const Json& model, std::string_view known) {
  if (!model.is_object()) return Corrupt("there is no object 'model'");
  // Files of the first versions have no type.
  if (!Get(model, "type").is_null() && TypeOf(model) != "BPE") return RefusePart("model", model, known);
  if (!Get(model, "vocab").is_object()) return Corrupt("there is no object 'model.vocab'");
  if (!Get(model, "merges").is_array()) return Corrupt("there is no array 'model.merges'");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const Json& value = Get(model, key); !value.is_null() && !IsText(value, "")) {
      return Unsupported(fmt::format("model: {} is not supported", key));
    }
  }
  if (const Json& dropout = Get(model, "dropout"); !dropout.is_null() && dropout != 0) {
    return Unsupported("model: dropout is not supported");
  }
  return OkStatus();
}

Status ReadJsonMerges(const Json& merges, MergeReader* reader) {
  for (const Json& merge : merges) {
    if (merge.is_string()) {
      TC_RETURN_IF_ERROR(reader->Add(merge.get_ref<const std::string&>()));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      TC_RETURN_IF_ERROR(reader->Add(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()));
    } else {
      return Corrupt(fmt::format("model.merges: {} is not a pair of tokens", Describe(merge)));
    }
  }
  return OkStatus();
}

}  // namespace tensorcache::tokenizer
