#include "server/chat_template.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "core/file.h"
#include "core/text.h"
#include "tokenizer/files.h"

namespace tensorcache::server {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxTemplate = 1 << 20;
constexpr int64_t kMaxConfig = 64 << 20;

// A JSON file of a folder; an empty object if it is not there.
Result<Json> JsonIn(const std::string& folder, std::string_view name) {
  const fs::path path = fs::path(folder) / name;
  if (!Exists(path)) return Json::object();
  TC_ASSIGN_OR_RETURN(Json json, ReadJsonFile(path.string(), kMaxConfig));
  if (!json.is_object()) return Corrupt(fmt::format("{}: is no JSON object", path.string()));
  return json;
}

}  // namespace

Result<std::string> ChatTemplate::SourceIn(const std::string& folder) {
  const fs::path file = fs::path(folder) / "chat_template.jinja";
  if (Exists(file)) return ReadWholeFile(file.string(), kMaxTemplate);
  TC_ASSIGN_OR_RETURN(const Json config, JsonIn(folder, tokenizer::kTokenizerConfigJson));
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::string();
  if (found->is_string()) return found->get<std::string>();
  // Several, by their names.
  for (const Json& entry : *found) {
    if (entry.is_object() && entry.value("name", "") == "default" && entry.contains("template") &&
        entry["template"].is_string()) {
      return entry["template"].get<std::string>();
    }
  }
  return std::string();
}

Result<ChatTemplate> ChatTemplate::Load(std::string_view source, const std::string& folder,
                                        std::shared_ptr<const Tokenizer> tokenizer) {
  TC_ASSIGN_OR_RETURN(const Json config, JsonIn(folder, tokenizer::kTokenizerConfigJson));
  return Create(source, config, std::move(tokenizer));
}

Result<ChatTemplate> ChatTemplate::Create(std::string_view source, const Json& config,
                                          std::shared_ptr<const Tokenizer> tokenizer) {
  if (!IsValidUtf8(source)) return InvalidArgument("the chat template is not UTF-8");
  TC_ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::Parse(source));
  ChatTemplate chat(std::move(parsed), std::move(tokenizer));
  const Tokenizer& tokens = *chat.tokenizer_;
  for (int32_t token = 0; token < tokens.vocab_size(); ++token) {
    if (!tokens.IsSpecial(token)) continue;
    std::string text;
    TC_RETURN_IF_ERROR(tokens.Decode(std::span(&token, 1), &text));
    if (!text.empty()) chat.specials_[text[0]].emplace(text, token);
  }
  for (const auto& [name, token] :
       {std::pair("bos_token", tokens.begin_of_text()), {"eos_token", tokens.end_of_text()}}) {
    if (token < 0) continue;
    TC_RETURN_IF_ERROR(tokens.Decode(std::span(&token, 1), &chat.named_tokens_[name]));
  }
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    const auto found = config.find(name);
    if (found == config.end()) continue;
    const Json& text = found->is_object() && found->contains("content") ? (*found)["content"] : *found;
    if (text.is_string()) chat.named_tokens_[name] = text.get<std::string>();
  }
  return chat;
}

Result<jinja::Text> ChatTemplate::Render(const ChatPrompt& prompt) const {
  jinja::Dict variables;
  const auto set = [](jinja::Dict* dict, std::string_view name, jinja::Value value) {
    dict->Set(jinja::Text(name), std::move(value));
  };
  for (const auto& [key, value] : prompt.variables.items()) {
    set(&variables, key, jinja::Value::OfJson(value, jinja::Text::kOutside));
  }
  for (const auto& [name, text] : named_tokens_) set(&variables, name, jinja::Value::Of(text));
  jinja::List messages;
  for (const ChatMessage& message : prompt.messages) {
    jinja::Dict dict;
    set(&dict, "role", jinja::Value::Of(message.role));
    set(&dict, "content", jinja::Value::Of(jinja::Text(message.content, jinja::Text::kOutside)));
    if (!message.name.empty()) set(&dict, "name", jinja::Value::Of(jinja::Text(message.name, jinja::Text::kOutside)));
    messages.push_back(jinja::Value::Of(std::move(dict)));
  }
  set(&variables, "messages", jinja::Value::Of(std::move(messages)));
  set(&variables, "add_generation_prompt", jinja::Value::Of(prompt.add_generation_prompt));
  return template_.Render(variables);
}

int32_t ChatTemplate::SpecialAt(const jinja::Text& text, size_t at, size_t* size) const {
  const auto found = specials_.find(text.bytes[at]);
  if (found == specials_.end()) return -1;
  // A text that is the beginning of another comes before it.
  for (auto special = found->second.rbegin(); special != found->second.rend(); ++special) {
    *size = special->first.size();
    if (text.bytes.compare(at, *size, special->first) != 0) continue;
    if (text.marks.find(jinja::Text::kOutside, at) >= at + *size) return special->second;
  }
  return -1;
}

Result<std::vector<int32_t>> ChatTemplate::Tokens(const jinja::Text& text) const {
  std::vector<int32_t> tokens;
  const std::string_view bytes = text.bytes;
  size_t begin = 0;
  for (size_t at = 0, size = 0; at < bytes.size();) {
    const int32_t special = text.marks[at] == jinja::Text::kTemplate ? SpecialAt(text, at, &size) : -1;
    if (special < 0) {
      ++at;
      continue;
    }
    TC_RETURN_IF_ERROR(tokenizer_->Encode(bytes.substr(begin, at - begin), &tokens));
    tokens.push_back(special);
    begin = at += size;
  }
  TC_RETURN_IF_ERROR(tokenizer_->Encode(bytes.substr(begin), &tokens));
  return tokens;
}

Result<std::vector<int32_t>> EndTokensIn(const std::string& folder, int64_t vocab_size) {
  TC_ASSIGN_OR_RETURN(const Json config, JsonIn(folder, "generation_config.json"));
  std::vector<int32_t> tokens;
  const auto found = config.find("eos_token_id");
  if (found == config.end()) return tokens;
  for (const Json& token : found->is_array() ? *found : Json::array({*found})) {
    if (token.is_number_unsigned() && token.get<uint64_t>() < static_cast<uint64_t>(vocab_size)) {
      tokens.push_back(token.get<int32_t>());
    }
  }
  return tokens;
}

}  // namespace tensorcache::server
