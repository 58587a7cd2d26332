#include "server/reply.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "server/access.h"

namespace tensorcache::server {
namespace {

// `cached_tokens`: of the prompt, that the session had read before.
OrderedJson UsageJson(int64_t prompt_tokens, int64_t completion_tokens, int64_t cached_tokens) {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
}

// Called on the engine's thread alone.
class Reply {
 public:
  Reply(std::shared_ptr<Call> call, ReplyOptions options, std::unique_ptr<ReplyFormat> format, size_t prompts,
        int64_t n, int64_t prompt_tokens)
      : call_(std::move(call)),
        options_(std::move(options)),
        format_(std::move(format)),
        n_(static_cast<size_t>(n)),
        created_(UnixTime()),
        cached_tokens_(options_.session == nullptr ? 0 : options_.session->snapshot()->position()),
        prompt_tokens_(prompt_tokens + cached_tokens_),
        left_(prompts),
        choices_(prompts * n_) {}

  bool wanted() const { return !failed_ && !call_->gone(); }

  void OnPrompt(size_t prompt, const std::vector<TokenScore>& scores) {
    if (options_.stream && !call_->streaming()) call_->StartEvents();
    for (size_t i = prompt * n_; i < (prompt + 1) * n_; ++i) {
      std::string text = format_->Begin(i, scores);
      if (!text.empty() || (options_.stream && format_->opens())) AddText(i, std::move(text));
    }
  }
  void OnText(size_t choice, std::string text, const std::vector<TokenScore>& scores) {
    format_->AddScores(choice, scores);
    if (!text.empty() || !scores.empty()) AddText(choice, std::move(text));
  }
  void OnChoiceEnd(size_t choice, FinishReason reason, int64_t tokens, Snapshot after) {
    // The session has the reply before its client knows that it is complete.
    if (options_.session != nullptr && !options_.session->Replace(std::move(after))) return Fail(NoRoomForState());
    choices_[choice].finish = reason == FinishReason::kStop ? "stop" : "length";
    completion_tokens_ += tokens;
    if (options_.stream) call_->SendEvent(Body({format_->Piece(choice, "", choices_[choice].finish)}));
  }
  void OnEnd(const MaybeError& error) {
    --left_;
    if (failed_) return;
    if (error) {
      Fail(*error);
    } else if (left_ == 0 && !call_->gone()) {
      options_.stream ? EndStream() : Answer();
    }
  }
  void Fail(const ApiError& error) {
    failed_ = true;
    options_.session.reset();
    call_->Fail(error);
  }

 private:
  struct Choice {
    std::string text;  // unless it is streamed
    OrderedJson finish = nullptr;
  };

  void AddText(size_t choice, std::string text) {
    if (options_.stream) {
      call_->SendEvent(Body({format_->Piece(choice, std::move(text), nullptr)}));
    } else {
      choices_[choice].text += text;
    }
  }

  OrderedJson Body(OrderedJson::array_t choices) const {
    OrderedJson body = {{"id", options_.id_prefix + call_->id()},
                        {"object", options_.stream ? options_.event_object : options_.object},
                        {"created", created_},
                        {"model", options_.model},
                        {"choices", std::move(choices)}};
    if (options_.stream && options_.include_usage) body["usage"] = nullptr;
    return body;
  }

  // Gives the session free, so that the client can use it as soon as it has the answer.
  OrderedJson EndSession() {
    OrderedJson json = SessionJson(options_.session->info());
    options_.session.reset();
    return json;
  }

  void EndStream() {
    OrderedJson body = Body({});
    if (options_.include_usage) body["usage"] = UsageJson(prompt_tokens_, completion_tokens_, cached_tokens_);
    if (options_.session != nullptr) body["session"] = EndSession();
    if (body.contains("session") || options_.include_usage) call_->SendEvent(body);
    call_->EndEvents();
  }

  void Answer() {
    OrderedJson::array_t choices;
    for (size_t i = 0; i < choices_.size(); ++i) {
      choices.push_back(format_->Whole(i, std::move(choices_[i].text), choices_[i].finish));
    }
    OrderedJson body = Body(std::move(choices));
    body["usage"] = UsageJson(prompt_tokens_, completion_tokens_, cached_tokens_);
    if (options_.session != nullptr) body["session"] = EndSession();
    call_->Answer(body);
  }

  const std::shared_ptr<Call> call_;
  ReplyOptions options_;
  const std::unique_ptr<ReplyFormat> format_;
  const size_t n_;
  const int64_t created_;
  const int64_t cached_tokens_, prompt_tokens_;
  size_t left_;  // jobs
  std::vector<Choice> choices_;
  int64_t completion_tokens_ = 0;
  bool failed_ = false;
};

// One of its jobs.
class ReplyListener : public GenerationListener {
 public:
  ReplyListener(std::shared_ptr<Reply> reply, size_t prompt, int64_t n)
      : reply_(std::move(reply)), prompt_(prompt), first_(prompt * static_cast<size_t>(n)) {}

  bool wanted() const override { return reply_->wanted(); }
  void OnPrompt(std::vector<TokenScore> scores, Snapshot) override { reply_->OnPrompt(prompt_, scores); }
  void OnText(int64_t choice, std::string text, std::vector<TokenScore> scores) override {
    reply_->OnText(first_ + static_cast<size_t>(choice), std::move(text), scores);
  }
  void OnChoiceEnd(int64_t choice, FinishReason reason, int64_t tokens, Snapshot after) override {
    reply_->OnChoiceEnd(first_ + static_cast<size_t>(choice), reason, tokens, std::move(after));
  }
  void OnEnd(const MaybeError& error) override { reply_->OnEnd(error); }

 private:
  const std::shared_ptr<Reply> reply_;
  const size_t prompt_, first_;
};

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
  return ContextLengthExceeded(
      fmt::format("the model has learned positions for {} tokens, and there is room for {} more; {} of the prompt and "
                  "{} of the reply "
                  "are too many",
                  model.config().max_position_embeddings, room, prompt_tokens, max_tokens));
}

int64_t UnixTime() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void StartReply(const std::shared_ptr<Call>& call, Engine& engine, std::vector<std::vector<int32_t>> prompts, int64_t n,
                const GenerationOptions& generation, ReplyOptions options, std::unique_ptr<ReplyFormat> format) {
  const Snapshot from = options.session == nullptr ? nullptr : options.session->snapshot();
  const int64_t position = from == nullptr ? 0 : from->position();
  int64_t prompt_tokens = 0;
  for (const std::vector<int32_t>& prompt : prompts) {
    if (auto error = CheckContext(*engine.model(), position, std::ssize(prompt), generation.max_tokens)) {
      return call->Fail(*error);
    }
    prompt_tokens += std::ssize(prompt);
  }
  const auto reply =
      std::make_shared<Reply>(call, std::move(options), std::move(format), prompts.size(), n, prompt_tokens);
  std::vector<GenerationJob> jobs;
  for (size_t i = 0; i < prompts.size(); ++i) {
    jobs.push_back({.from = from,
                    .prompt = std::move(prompts[i]),
                    .choices = n,
                    .options = generation,
                    .keep = from != nullptr,
                    .listener = std::make_shared<ReplyListener>(reply, i, n)});
    // Each prompt's replies are its own, and the first prompt's are those that it would have alone.
    jobs.back().options.sampling.seed += i;
  }
  if (auto error = engine.Submit(std::move(jobs))) reply->Fail(*error);
}

}  // namespace tensorcache::server
