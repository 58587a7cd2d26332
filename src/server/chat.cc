#include "server/chat.h"

#include <utility>
#include <vector>

#include "server/reply.h"
#include "server/token_text.h"

namespace tensorcache::server {
namespace {

// A token of `logprobs.content`.
OrderedJson TokenJson(const Tokenizer& tokenizer, int32_t previous, int32_t token, float logprob) {
  std::vector<int> bytes;
  for (const char byte : TokenBytes(tokenizer, previous, token)) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", TokenText(tokenizer, previous, token)}, {"logprob", logprob}, {"bytes", bytes}};
}

class ChatFormat : public ReplyFormat {
 public:
  ChatFormat(int64_t n, bool logprobs, int32_t last_token, std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)),
        wants_logprobs_(logprobs),
        choices_(static_cast<size_t>(n), Choice{.previous = last_token}) {}

  bool opens() const override { return true; }
  std::string Begin(size_t, const std::vector<TokenScore>&) override { return ""; }
  void AddScores(size_t choice, const std::vector<TokenScore>& scores) override {
    Choice& to = choices_[choice];
    for (const TokenScore& score : scores) {
      OrderedJson token = TokenJson(*tokenizer_, to.previous, score.token, score.logprob);
      token["top_logprobs"] = OrderedJson::array();
      for (const auto& [other, logprob] : score.top) {
        token["top_logprobs"].push_back(TokenJson(*tokenizer_, to.previous, other, logprob));
      }
      to.scores.push_back(std::move(token));
      to.previous = score.token;
    }
  }
  OrderedJson Whole(size_t choice, std::string text, const OrderedJson& finish) override {
    return {{"index", choice},
            {"message", {{"role", "assistant"}, {"content", std::move(text)}, {"refusal", nullptr}}},
            {"logprobs", TakeScores(choice, true)},
            {"finish_reason", finish}};
  }
  OrderedJson Piece(size_t choice, std::string text, const OrderedJson& finish) override {
    OrderedJson delta = OrderedJson::object();
    const bool is_first = !std::exchange(choices_[choice].opened, true);
    if (is_first) delta["role"] = "assistant";
    if (finish.is_null()) delta["content"] = std::move(text);
    return {{"index", choice},
            {"delta", std::move(delta)},
            {"logprobs", TakeScores(choice, !is_first && finish.is_null())},
            {"finish_reason", finish}};
  }

 private:
  struct Choice {
    int32_t previous = -1;
    bool opened = false;
    OrderedJson scores = OrderedJson::array();
  };

  OrderedJson TakeScores(size_t choice, bool here) {
    if (!wants_logprobs_ || !here) return nullptr;
    return {{"content", std::exchange(choices_[choice].scores, OrderedJson::array())}, {"refusal", nullptr}};
  }

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const bool wants_logprobs_;
  std::vector<Choice> choices_;
};

// The prompt's text and tokens, or an error.
MaybeError MakePrompt(const ChatPrompt& prompt, const ChatTemplate* chat, jinja::Text* text,
                      std::vector<int32_t>* tokens) {
  if (chat == nullptr) {
    return MakeError(400, "no_chat_template",
                     "the model has no chat template; start the server with --chat-template FILE, or "
                     "ask /v1/completions");
  }
  Result<jinja::Text> rendered = chat->Render(prompt);
  if (!rendered.ok()) return InvalidValue("messages", rendered.status().message());
  Result<std::vector<int32_t>> made = chat->Tokens(*rendered);
  if (!made.ok()) return InvalidValue("messages", made.status().message());
  *text = std::move(*rendered);
  *tokens = std::move(*made);
  return std::nullopt;
}

}  // namespace

void Chat(const std::shared_ptr<Call>& call, const ChatRequest& request, const ChatOptions& options,
          const ChatTemplate* chat, Engine& engine) {
  jinja::Text text;
  std::vector<int32_t> tokens;
  if (auto error = MakePrompt(request.prompt, chat, &text, &tokens)) return call->Fail(*error);
  if (tokens.empty()) return call->Fail(InvalidValue("messages", "the chat template makes no text of these"));
  GenerationOptions generation = OptionsOf(request.reply);
  generation.max_tokens = request.reply.max_tokens.value_or(options.max_tokens);
  generation.logprobs = request.logprobs ? request.top_logprobs : -1;
  auto format = std::make_unique<ChatFormat>(request.reply.n, request.logprobs, tokens.back(), engine.tokenizer());
  std::vector<std::vector<int32_t>> prompts;
  prompts.push_back(std::move(tokens));
  StartReply(call, engine, std::move(prompts), request.reply.n, generation,
             {.id_prefix = "chatcmpl-",
              .object = "chat.completion",
              .event_object = "chat.completion.chunk",
              .model = options.model,
              .stream = request.reply.stream,
              .include_usage = request.reply.include_usage},
             std::move(format));
}

void ApplyTemplate(const std::shared_ptr<Call>& call, const ApplyTemplateRequest& request, const ChatTemplate* chat) {
  jinja::Text text;
  std::vector<int32_t> tokens;
  if (auto error = MakePrompt(request.prompt, chat, &text, &tokens)) return call->Fail(*error);
  call->Answer({{"prompt", text.bytes}, {"tokens", tokens}});
}

}  // namespace tensorcache::server
