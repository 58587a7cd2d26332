#include "server/completion.h"

#include <utility>
#include <vector>

#include "server/reply.h"
#include "server/token_text.h"

namespace tensorcache::server {
namespace {

struct PromptText {
  std::string text;               // for echo
  int64_t hidden_characters = 0;  // of the begin-of-text token, which the text does not show
  int32_t last_token = -1;
};

class CompletionFormat : public ReplyFormat {
 public:
  CompletionFormat(std::vector<PromptText> prompts, const CompletionRequest& request,
                   std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)),
        prompts_(std::move(prompts)),
        n_(static_cast<size_t>(request.reply.n)),
        echo_(request.echo),
        wants_logprobs_(request.logprobs.has_value()),
        logprobs_(prompts_.size() * n_, CompletionLogprobs(*tokenizer_)) {}

  std::string Begin(size_t choice, const std::vector<TokenScore>& prompt_scores) override {
    const PromptText& prompt = prompts_[choice / n_];
    CompletionLogprobs& logprobs = logprobs_[choice];
    if (!echo_) {
      logprobs.SetStart(prompt.last_token, 0);
      return "";
    }
    logprobs.SetStart(-1, -prompt.hidden_characters);
    logprobs.Add(prompt_scores);
    logprobs.SetStart(prompt.last_token, CountCharacters(prompt.text));
    return prompt.text;
  }
  void AddScores(size_t choice, const std::vector<TokenScore>& scores) override { logprobs_[choice].Add(scores); }
  OrderedJson Whole(size_t choice, std::string text, const OrderedJson& finish) override {
    return Entry(choice, std::move(text), finish, wants_logprobs_);
  }
  OrderedJson Piece(size_t choice, std::string text, const OrderedJson& finish) override {
    return Entry(choice, std::move(text), finish, wants_logprobs_ && finish.is_null());
  }

 private:
  OrderedJson Entry(size_t choice, std::string text, const OrderedJson& finish, bool with_logprobs) {
    return {{"index", choice},
            {"text", std::move(text)},
            {"logprobs", with_logprobs ? logprobs_[choice].Take() : OrderedJson(nullptr)},
            {"finish_reason", finish}};
  }

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::vector<PromptText> prompts_;
  const size_t n_;
  const bool echo_, wants_logprobs_;
  std::vector<CompletionLogprobs> logprobs_;
};

// Its text as the answer shows it, in front of the reply.
MaybeError Echo(const Prompt& prompt, const std::vector<int32_t>& tokens, bool begin,
                const std::shared_ptr<const Tokenizer>& tokenizer, PromptText* text) {
  if (const auto* given = std::get_if<std::string>(&prompt)) {
    text->text = *given;
    if (begin) text->hidden_characters = CountCharacters(TokenBytes(*tokenizer, -1, tokens[0]));
    return std::nullopt;
  }
  StreamDecoder decoder(tokenizer);  // replaces what is no text
  Status status;
  for (const int32_t token : tokens) {
    if (status.ok()) status = decoder.Push(token, &text->text);
  }
  if (status.ok()) status = decoder.Finish(&text->text);
  if (!status.ok()) return ErrorOf(status);
  return std::nullopt;
}

}  // namespace

Status EncodePrompt(const Prompt& prompt, bool begin, const Tokenizer& tokenizer, std::vector<int32_t>* tokens) {
  if (const auto* given = std::get_if<std::vector<int32_t>>(&prompt)) {
    *tokens = *given;
    return OkStatus();
  }
  if (begin) tokens->push_back(tokenizer.begin_of_text());
  return tokenizer.Encode(std::get<std::string>(prompt), tokens);
}

void Complete(const std::shared_ptr<Call>& call, const CompletionRequest& request, const CompletionOptions& options,
              std::shared_ptr<SessionUse> session, Engine& engine) {
  GenerationOptions generation = OptionsOf(request.reply);
  generation.max_tokens = request.reply.max_tokens.value_or(options.max_tokens);
  generation.logprobs = request.logprobs.value_or(-1);
  generation.score_prompt = request.echo && request.logprobs.has_value();
  std::vector<std::vector<int32_t>> prompts(request.prompts.size());
  std::vector<PromptText> texts(prompts.size());
  const Session* before = session == nullptr ? nullptr : session->snapshot().get();
  const bool is_new = before == nullptr || before->position() == 0;
  const bool begin = options.begin && is_new;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Status status = EncodePrompt(request.prompts[i], begin, *engine.tokenizer(), &prompts[i]);
    if (!status.ok()) return call->Fail(InvalidValue("prompt", status.message()));
    if (prompts[i].empty() && is_new) {
      return call->Fail(InvalidValue("prompt", "the prompt is empty; there is nothing to go on from"));
    }
    texts[i].last_token = !prompts[i].empty() ? prompts[i].back() : before->recent().back();
    if (!request.echo) continue;
    if (auto error = Echo(request.prompts[i], prompts[i], begin, engine.tokenizer(), &texts[i]))
      return call->Fail(*error);
  }
  StartReply(call, engine, std::move(prompts), request.reply.n, generation,
             {.id_prefix = "cmpl-",
              .object = "text_completion",
              .event_object = "text_completion",
              .model = options.model,
              .stream = request.reply.stream,
              .include_usage = request.reply.include_usage,
              .session = std::move(session)},
             std::make_unique<CompletionFormat>(std::move(texts), request, engine.tokenizer()));
}

}  // namespace tensorcache::server
