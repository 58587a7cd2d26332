// A model's chat template, and the tokens that it makes of a conversation. What comes from outside (the messages' texts) never
// becomes a control token, wherever the template puts it; what the template itself writes does.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "server/jinja/template.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::server {

struct ChatMessage {
  std::string role;  // one of a few that the server knows: the template's, not from outside
  std::string content;
  std::string name;  // "": none
};

struct ChatPrompt {
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = true;
  Json variables = Json::object();  // more of what the template asks for: {"enable_thinking": false}
};

class ChatTemplate {
 public:
  // The text of the template in a model's folder: chat_template.jinja, or in tokenizer_config.json; "" if there is none.
  static Result<std::string> SourceIn(const std::string& folder);

  // `config`: tokenizer_config.json, which names the tokens that templates know as bos_token, eos_token ...; or an empty object.
  static Result<ChatTemplate> Create(std::string_view source, const Json& config,
                                     std::shared_ptr<const Tokenizer> tokenizer);
  static Result<ChatTemplate> Load(std::string_view source, const std::string& folder,
                                   std::shared_ptr<const Tokenizer> tokenizer);

  // kInvalidArgument for what the template refuses.
  Result<jinja::Text> Render(const ChatPrompt& prompt) const;
  Result<std::vector<int32_t>> Tokens(const jinja::Text& text) const;

 private:
  ChatTemplate(jinja::Template parsed, std::shared_ptr<const Tokenizer> tokenizer)
      : template_(std::move(parsed)), tokenizer_(std::move(tokenizer)) {}
  // The control token whose text, all of it the template's own, begins there, the longest; -1.
  int32_t SpecialAt(const jinja::Text& text, size_t at, size_t* size) const;

  jinja::Template template_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::map<std::string, std::string> named_tokens_;          // "bos_token" to "<s>"
  std::map<char, std::map<std::string, int32_t>> specials_;  // by first byte
};

// The tokens that generation_config.json in the folder says end a text, besides the tokenizer's own; none if there is no such file.
Result<std::vector<int32_t>> EndTokensIn(const std::string& folder, int64_t vocab_size);

}  // namespace tensorcache::server
