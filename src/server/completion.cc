#include "server/completion.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include "server/access.h"
#include "server/token_text.h"

namespace tensorcache::server {
namespace {

// A prompt, and what comes of it in the request's answer.
struct PromptPart {
  std::vector<int32_t> tokens;
  std::string text;               // for echo
  int64_t hidden_characters = 0;  // of the begin-of-text token, which the text does not show
};

// Gathers what all jobs of one request say; all of them run on the engine's thread.
class CompletionReply {
 public:
  CompletionReply(std::shared_ptr<Call> call, const CompletionRequest& request, std::string model,
                  std::vector<PromptPart> prompts, std::shared_ptr<const Tokenizer> tokenizer)
      : call_(std::move(call)),
        model_(std::move(model)),
        tokenizer_(std::move(tokenizer)),
        prompts_(std::move(prompts)),
        n_(request.reply.n),
        echo_(request.echo),
        logprobs_(request.logprobs.has_value()),
        stream_(request.reply.stream),
        include_usage_(request.reply.include_usage),
        created_(UnixTime()),
        left_(prompts_.size()),
        choices_(prompts_.size() * static_cast<size_t>(n_), Choice(*tokenizer_)) {}

  bool wanted() const { return !failed_ && !call_->gone(); }

  void OnPrompt(size_t prompt, const std::vector<TokenScore>& scores) {
    if (stream_ && !call_->streaming()) call_->StartEvents();
    const PromptPart& part = prompts_[prompt];
    for (int64_t i = 0; i < n_; ++i) {
      Choice& choice = ChoiceOf(prompt, i);
      if (!echo_) {
        choice.logprobs.SetStart(part.tokens.back(), 0);
        continue;
      }
      choice.logprobs.SetStart(-1, -part.hidden_characters);
      choice.logprobs.Add(scores);
      choice.logprobs.SetStart(part.tokens.back(), CountCharacters(part.text));
      AddText(prompt, i, part.text);
    }
  }
  void OnText(size_t prompt, int64_t index, std::string text, const std::vector<TokenScore>& scores) {
    ChoiceOf(prompt, index).logprobs.Add(scores);
    if (!text.empty() || !scores.empty()) AddText(prompt, index, std::move(text));
  }
  void OnChoiceEnd(size_t prompt, int64_t index, FinishReason reason, int64_t tokens) {
    Choice& choice = ChoiceOf(prompt, index);
    choice.finish = NameOf(reason);
    completion_tokens_ += tokens;
    if (stream_) call_->SendEvent(Body({ChoiceJson(prompt, index, "", false)}));
  }
  void OnEnd(const MaybeError& error) {
    --left_;
    if (failed_) return;
    if (error) {
      failed_ = true;
      call_->Fail(*error);
    } else if (left_ == 0 && !call_->gone()) {
      stream_ ? EndStream() : Answer();
    }
  }

 private:
  struct Choice {
    explicit Choice(const Tokenizer& tokenizer) : logprobs(tokenizer) {}
    std::string text;  // unless it is streamed
    CompletionLogprobs logprobs;
    std::string finish;
  };

  Choice& ChoiceOf(size_t prompt, int64_t index) {
    return choices_[prompt * static_cast<size_t>(n_) + static_cast<size_t>(index)];
  }

  void AddText(size_t prompt, int64_t index, std::string text) {
    if (stream_) {
      call_->SendEvent(Body({ChoiceJson(prompt, index, std::move(text), true)}));
    } else {
      ChoiceOf(prompt, index).text += text;
    }
  }

  OrderedJson ChoiceJson(size_t prompt, int64_t index, std::string text, bool with_logprobs) {
    Choice& choice = ChoiceOf(prompt, index);
    return {{"index", static_cast<int64_t>(prompt) * n_ + index},
            {"text", std::move(text)},
            {"logprobs", logprobs_ && with_logprobs ? choice.logprobs.Take() : OrderedJson(nullptr)},
            {"finish_reason", choice.finish.empty() ? OrderedJson(nullptr) : OrderedJson(choice.finish)}};
  }

  OrderedJson Body(OrderedJson::array_t choices) const {
    OrderedJson body = {{"id", "cmpl-" + call_->id()},
                        {"object", "text_completion"},
                        {"created", created_},
                        {"model", model_},
                        {"choices", std::move(choices)}};
    if (stream_ && include_usage_) body["usage"] = nullptr;
    return body;
  }

  OrderedJson Usage() const {
    int64_t prompt_tokens = 0;
    for (const PromptPart& prompt : prompts_) prompt_tokens += std::ssize(prompt.tokens);
    return UsageJson(prompt_tokens, completion_tokens_, 0);
  }

  void EndStream() {
    if (include_usage_) {
      OrderedJson body = Body({});
      body["usage"] = Usage();
      call_->SendEvent(body);
    }
    call_->EndEvents();
  }

  void Answer() {
    OrderedJson::array_t choices;
    for (size_t prompt = 0; prompt < prompts_.size(); ++prompt) {
      for (int64_t i = 0; i < n_; ++i) {
        choices.push_back(ChoiceJson(prompt, i, std::move(ChoiceOf(prompt, i).text), true));
      }
    }
    OrderedJson body = Body(std::move(choices));
    body["usage"] = Usage();
    call_->Answer(body);
  }

  const std::shared_ptr<Call> call_;
  const std::string model_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::vector<PromptPart> prompts_;
  const int64_t n_;
  const bool echo_, logprobs_, stream_, include_usage_;
  const int64_t created_;
  size_t left_;  // jobs
  std::vector<Choice> choices_;
  int64_t completion_tokens_ = 0;
  bool failed_ = false;
};

// One of its jobs.
class CompletionListener : public GenerationListener {
 public:
  CompletionListener(std::shared_ptr<CompletionReply> reply, size_t prompt)
      : reply_(std::move(reply)), prompt_(prompt) {}

  bool wanted() const override { return reply_->wanted(); }
  void OnPrompt(std::vector<TokenScore> scores, Snapshot) override { reply_->OnPrompt(prompt_, scores); }
  void OnText(int64_t choice, std::string text, std::vector<TokenScore> scores) override {
    reply_->OnText(prompt_, choice, std::move(text), scores);
  }
  void OnChoiceEnd(int64_t choice, FinishReason reason, int64_t tokens, Snapshot) override {
    reply_->OnChoiceEnd(prompt_, choice, reason, tokens);
  }
  void OnEnd(const MaybeError& error) override { reply_->OnEnd(error); }

 private:
  const std::shared_ptr<CompletionReply> reply_;
  const size_t prompt_;
};

MaybeError ReadPrompt(const Prompt& prompt, const CompletionRequest& request, const CompletionOptions& options,
                      const std::shared_ptr<const Tokenizer>& tokenizer, PromptPart* part) {
  if (const auto* tokens = std::get_if<std::vector<int32_t>>(&prompt)) {
    part->tokens = *tokens;
    if (request.echo) {
      StreamDecoder decoder(tokenizer);  // replaces what is no text
      Status status;
      for (const int32_t token : *tokens) {
        if (status.ok()) status = decoder.Push(token, &part->text);
      }
      if (status.ok()) status = decoder.Finish(&part->text);
      if (!status.ok()) return ErrorOf(status);
    }
  } else {
    part->text = std::get<std::string>(prompt);
    if (options.begin && tokenizer->begin_of_text() >= 0) {
      part->tokens.push_back(tokenizer->begin_of_text());
      part->hidden_characters = CountCharacters(TokenBytes(*tokenizer, -1, part->tokens[0]));
    }
    if (const Status status = tokenizer->Encode(part->text, &part->tokens); !status.ok()) {
      return InvalidValue("prompt", status.message());
    }
  }
  if (part->tokens.empty()) return InvalidValue("prompt", "the prompt is empty; there is nothing to go on from");
  return std::nullopt;
}

}  // namespace

GenerationOptions OptionsOf(const ReplyFields& fields) {
  GenerationOptions options{.sampling = fields.sampling,
                            .changes = {.presence_penalty = fields.presence_penalty,
                                        .frequency_penalty = fields.frequency_penalty,
                                        .bias = fields.logit_bias},
                            .stop = fields.stop,
                            .ignore_end = fields.ignore_eos};
  options.sampling.seed = fields.seed ? *fields.seed : RandomNumber();
  return options;
}

MaybeError CheckContext(const Model& model, int64_t position, int64_t prompt_tokens, int64_t max_tokens) {
  if (model.config().position_embedding != PositionKind::kLearned) return std::nullopt;
  const int64_t room = model.config().max_position_embeddings - position;
  if (prompt_tokens + max_tokens <= room) return std::nullopt;
  return ContextLengthExceeded(fmt::format(
      "the model has learned positions for {} tokens, and there is room for {} more; {} of the prompt and {} of "
      "the reply are too many",
      model.config().max_position_embeddings, room, prompt_tokens, max_tokens));
}

std::string NameOf(FinishReason reason) { return reason == FinishReason::kStop ? "stop" : "length"; }

OrderedJson UsageJson(int64_t prompt_tokens, int64_t completion_tokens, int64_t cached_tokens) {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
}

int64_t UnixTime() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void Complete(const std::shared_ptr<Call>& call, CompletionRequest request, const CompletionOptions& options,
              Engine& engine) {
  GenerationOptions generation = OptionsOf(request.reply);
  generation.max_tokens = request.reply.max_tokens.value_or(options.max_tokens);
  generation.logprobs = request.logprobs.value_or(-1);
  generation.score_prompt = request.echo && request.logprobs.has_value();
  std::vector<PromptPart> prompts(request.prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    MaybeError error = ReadPrompt(request.prompts[i], request, options, engine.tokenizer(), &prompts[i]);
    if (!error) error = CheckContext(*engine.model(), 0, std::ssize(prompts[i].tokens), generation.max_tokens);
    if (error) return call->Fail(*error);
  }
  std::vector<GenerationJob> jobs;
  const auto reply = std::make_shared<CompletionReply>(call, request, options.model, prompts, engine.tokenizer());
  for (size_t i = 0; i < prompts.size(); ++i) {
    jobs.push_back({.prompt = std::move(prompts[i].tokens),
                    .choices = request.reply.n,
                    .options = generation,
                    .listener = std::make_shared<CompletionListener>(reply, i)});
    // Each prompt's replies are its own, and the first prompt's are those that it would have alone.
    ++generation.sampling.seed;
  }
  if (auto error = engine.Submit(std::move(jobs))) call->Fail(*error);
}

}  // namespace tensorcache::server
