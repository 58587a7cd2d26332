#include "server/engine.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/no_throw.h"
#include "core/rng.h"
#include "runtime/stop_strings.h"

namespace tensorcache::server {
namespace {

// Logits that are alive at the same time while a prompt is scored.
constexpr int64_t kScoredLogits = int64_t{1} << 22;

double Seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

// One of the replies of a job.
struct Engine::Choice {
  int64_t index = 0;
  Session session;
  Sampler sampler;
  StreamDecoder decoder;
  StopStrings stop;
  int64_t tokens = 0;
  std::map<int32_t, int64_t> counts = {};  // kept if a penalty wants them
  std::optional<int32_t> chosen = {};      // to be read by the session
  std::optional<FinishReason> finished = {};
  bool ended = false;           // and the listener knows
  Clock::time_point last = {};  // when its last token was chosen
};

struct Engine::Running {
  GenerationJob job;
  std::optional<Session> session;  // while the prompt is read
  size_t read = 0;                 // tokens of the prompt
  std::vector<TokenScore> scores;
  std::vector<Choice> choices;
  Clock::time_point arrived;

  bool reading() const { return choices.empty(); }
};

Engine::Engine(std::shared_ptr<const Model> model, std::shared_ptr<const Tokenizer> tokenizer,
               const EngineOptions& options, Metrics* metrics)
    : model_(std::move(model)), tokenizer_(std::move(tokenizer)), options_(options), metrics_(metrics) {
  thread_ = std::thread([this] { Loop(); });
}

Engine::~Engine() { Stop(); }

void Engine::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

MaybeError Engine::Check(const GenerationJob& job) const {
  if (const Status status = ValidateSamplingOptions(job.options.sampling); !status.ok()) {
    return InvalidValue("", status.message());
  }
  if (const auto stop = StopStrings::Create(job.options.stop); !stop.ok()) {
    return InvalidValue("stop", stop.status().message());
  }
  if (job.choices > options_.max_batch)
    return InvalidValue("n", "more replies than the server writes at the same time");
  return std::nullopt;
}

bool Engine::Ends(int32_t token) const {
  const std::vector<int32_t>& more = options_.end_tokens;
  return token == tokenizer_->end_of_text() || std::find(more.begin(), more.end(), token) != more.end();
}

MaybeError Engine::Submit(std::vector<GenerationJob> jobs) {
  std::vector<std::unique_ptr<Running>> all;
  for (GenerationJob& job : jobs) {
    if (auto error = Check(job)) return error;
    auto running = std::make_unique<Running>();
    running->job = std::move(job);
    running->arrived = Clock::now();
    all.push_back(std::move(running));
  }
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return ShuttingDown();
    if (std::ssize(queue_) + std::ssize(all) > options_.queue) return QueueFull();
    for (auto& running : all) queue_.push_back(std::move(running));
    metrics_->waiting = std::ssize(queue_);
  }
  wake_.notify_one();
  return std::nullopt;
}

void Engine::Loop() {
  while (TakeJobs()) {
    DropUnwanted();
    ReadPrompts();
    const Status status = NoThrow("write tokens", [&] { return WriteStep(); });
    if (!status.ok()) FailAll(status);
    Measure();
  }
  const std::lock_guard lock(mutex_);
  for (auto& waiting : queue_) running_.push_back(std::move(waiting));
  queue_.clear();
  while (!running_.empty()) Drop(running_.begin(), ShuttingDown());
}

bool Engine::TakeJobs() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return stop_ || !queue_.empty() || !running_.empty(); });
  int64_t sequences = 0;
  for (const auto& running : running_) sequences += running->job.choices;
  while (!queue_.empty() && sequences + queue_.front()->job.choices <= options_.max_batch) {
    sequences += queue_.front()->job.choices;
    running_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  metrics_->waiting = std::ssize(queue_);
  return !stop_;
}

void Engine::Drop(const std::list<std::unique_ptr<Running>>::iterator& at, const MaybeError& error) {
  const std::shared_ptr<GenerationListener> listener = (*at)->job.listener;
  running_.erase(at);
  // No memory to say so: the connection closes when the listener goes.
  (void)NoThrow("end a reply", [&] {
    listener->OnEnd(error);
    return OkStatus();
  });
}

void Engine::DropUnwanted() {
  for (auto at = running_.begin(); at != running_.end();) {
    const auto running = at++;
    if ((*running)->job.listener->wanted()) continue;
    ++metrics_->cancelled;
    Drop(running, std::nullopt);
  }
}

// One block of each prompt in turn, until a block's worth of tokens was read: short prompts need not wait for each other.
void Engine::ReadPrompts() {
  int64_t budget = model_->options().prefill_block;
  for (auto at = running_.begin(); at != running_.end() && budget > 0;) {
    const auto running = at++;
    if (!(*running)->reading()) continue;
    const size_t before = (*running)->read;
    Status status = NoThrow("read a prompt", [&] { return ReadBlock(**running); });
    budget -= static_cast<int64_t>((*running)->read - before);
    if (status.ok() && (*running)->read == (*running)->job.prompt.size()) {
      status = NoThrow("begin a reply", [&] { return PromptIsRead(**running); });
      if (status.ok() && (*running)->job.options.max_tokens == 0) {
        Drop(running, std::nullopt);
        continue;
      }
    }
    if (!status.ok()) {
      Drop(running, ErrorOf(status));
    } else if ((*running)->reading()) {
      running_.splice(running_.end(), running_, running);  // the next one's turn
    }
  }
}

Status Engine::ReadBlock(Running& running) {
  const GenerationJob& job = running.job;
  if (!running.session) {
    TC_ASSIGN_OR_RETURN(Session session, job.from != nullptr ? job.from->Fork() : Session::Create(model_));
    running.session.emplace(std::move(session));
  }
  const int64_t V = model_->config().vocab_size;
  int64_t most = model_->options().prefill_block;
  if (job.options.score_prompt) most = std::clamp<int64_t>(kScoredLogits / V, 1, most);
  const size_t size = std::min(static_cast<size_t>(most), job.prompt.size() - running.read);
  const std::span<const int32_t> block = std::span(job.prompt).subspan(running.read, size);
  if (!job.options.score_prompt || block.empty()) {
    TC_RETURN_IF_ERROR(running.session->Prefill(block));
  } else {
    const auto vocabulary = static_cast<size_t>(tokenizer_->vocab_size());
    const auto score = [&](std::span<const float> logits, int32_t token) {
      running.scores.push_back(ScoreToken(logits.first(vocabulary), token, job.options.logprobs));
    };
    if (running.session->position() == 0) {
      running.scores.push_back({.token = block[0]});
    } else {
      const std::span<const float> logits = running.session->logits();
      if (logits.empty()) return IoError("not enough memory to score a prompt");
      score(logits, block[0]);
    }
    logits_.resize(size * static_cast<size_t>(V));
    TC_RETURN_IF_ERROR(running.session->PrefillLogits(block, logits_));
    for (size_t i = 0; i + 1 < size; ++i) {
      score(std::span(logits_).subspan(i * static_cast<size_t>(V), static_cast<size_t>(V)), block[i + 1]);
    }
  }
  running.read += size;
  metrics_->prompt_tokens += static_cast<int64_t>(size);
  return OkStatus();
}

Status Engine::PromptIsRead(Running& running) {
  const GenerationJob& job = running.job;
  Snapshot after;
  if (job.keep) {
    TC_ASSIGN_OR_RETURN(Session fork, running.session->Fork());
    after = std::make_shared<const Session>(std::move(fork));
  }
  std::vector<Choice> choices;
  const std::span<const int32_t> recent = running.session->recent();
  for (int64_t i = 0; i < job.choices && job.options.max_tokens > 0; ++i) {
    SamplingOptions sampling = job.options.sampling;
    if (i > 0) sampling.seed = Rng(sampling.seed, static_cast<uint64_t>(i)).NextU64();
    TC_ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create(sampling));
    TC_ASSIGN_OR_RETURN(StopStrings stop, StopStrings::Create(job.options.stop));
    TC_ASSIGN_OR_RETURN(Session session, running.session->Fork());
    choices.push_back({.index = i,
                       .session = std::move(session),
                       .sampler = std::move(sampler),
                       .decoder = StreamDecoder(tokenizer_, recent.empty() ? -1 : recent.back()),
                       .stop = std::move(stop)});
  }
  running.session.reset();
  job.listener->OnPrompt(std::move(running.scores), after);
  for (int64_t i = 0; job.options.max_tokens == 0 && i < job.choices; ++i) {
    job.listener->OnChoiceEnd(i, FinishReason::kLength, 0, after);
  }
  running.choices = std::move(choices);
  return OkStatus();
}

Status Engine::WriteStep() {
  std::vector<const Session*> sessions;
  for (const auto& running : running_) {
    for (const Choice& choice : running->choices) {
      if (!choice.ended) sessions.push_back(&choice.session);
    }
  }
  if (sessions.empty()) return OkStatus();
  const auto V = static_cast<size_t>(model_->config().vocab_size);
  logits_.resize(sessions.size() * V);
  TC_RETURN_IF_ERROR(Session::BatchLogits(sessions, logits_));
  size_t row = 0;
  for (auto at = running_.begin(); at != running_.end();) {
    const auto running = at++;
    Status status;
    for (Choice& choice : (*running)->choices) {
      if (choice.ended) continue;
      const std::span<float> logits = std::span(logits_).subspan(row++ * V, V);
      if (status.ok()) status = Choose(**running, choice, logits);
    }
    if (!status.ok()) Drop(running, ErrorOf(status));
  }
  DecodeChosen();
  return OkStatus();
}

Status Engine::Choose(Running& running, Choice& choice, std::span<float> logits) {
  const GenerationOptions& options = running.job.options;
  // A model may have more logits than its tokenizer has tokens: rounded up to a round number. The rest mean nothing.
  logits = logits.first(static_cast<size_t>(tokenizer_->vocab_size()));
  std::vector<float> original;
  if (options.changes.any()) {
    if (options.logprobs >= 0) original.assign(logits.begin(), logits.end());
    options.changes.Apply(choice.counts, logits);
  }
  TC_ASSIGN_OR_RETURN(const int32_t token, choice.sampler.Sample(logits, choice.session.recent(),
                                                                 static_cast<uint64_t>(choice.session.position())));
  std::vector<TokenScore> scores;
  if (options.logprobs >= 0) {
    scores.push_back(ScoreToken(original.empty() ? logits : std::span<const float>(original), token, options.logprobs));
  }
  return Accept(running, choice, token, std::move(scores));
}

Status Engine::Accept(Running& running, Choice& choice, int32_t token, std::vector<TokenScore> scores) {
  const GenerationOptions& options = running.job.options;
  const Clock::time_point now = Clock::now();
  if (choice.tokens == 0) {
    metrics_->first_token.Add(Seconds(now - running.arrived));
  } else {
    metrics_->token_gap.Add(Seconds(now - choice.last));
  }
  choice.last = now;
  ++choice.tokens;
  ++metrics_->generated_tokens;
  if (options.changes.any()) ++choice.counts[token];

  std::string text;
  if (Ends(token) && !options.ignore_end) {
    choice.finished = FinishReason::kStop;
  } else {
    TC_RETURN_IF_ERROR(choice.decoder.Push(token, &text));
    text = choice.stop.Push(text);
    const bool no_room = choice.session.room() == 0;  // learned positions end: shown, but not read
    if (!no_room) choice.chosen = token;
    const bool full = choice.tokens == options.max_tokens || no_room;
    if (choice.stop.stopped()) {
      choice.finished = FinishReason::kStop;
    } else if (full) {
      choice.finished = FinishReason::kLength;
    }
  }
  if (choice.finished && !choice.stop.stopped()) {
    std::string rest;
    TC_RETURN_IF_ERROR(choice.decoder.Finish(&rest));
    text += choice.stop.Push(rest);
    text += choice.stop.Finish();
  }
  running.job.listener->OnText(choice.index, std::move(text), std::move(scores));
  if (choice.finished && !(running.job.keep && choice.chosen)) EndChoice(running, choice);
  return OkStatus();
}

// Has the sessions read what was chosen, and ends what is complete.
void Engine::DecodeChosen() {
  std::vector<Session*> sessions;
  std::vector<int32_t> tokens;
  int64_t state_bytes = 0;
  for (const auto& running : running_) {
    for (Choice& choice : running->choices) {
      if (choice.ended || !choice.chosen) continue;
      sessions.push_back(&choice.session);
      tokens.push_back(*choice.chosen);
      choice.chosen.reset();
      state_bytes += choice.session.state_bytes().total();
    }
  }
  metrics_->state_bytes = state_bytes;
  const Status status = Session::DecodeBatch(sessions, tokens);
  for (auto at = running_.begin(); at != running_.end();) {
    const auto running = at++;
    if ((*running)->reading()) continue;
    Status failure;
    bool all_ended = true;
    for (Choice& choice : (*running)->choices) {
      if (choice.ended) continue;
      // Reading nothing tells whether this session is one of those that failed.
      if (!status.ok() && failure.ok()) failure = choice.session.Prefill({});
      if (failure.ok() && choice.finished) EndChoice(**running, choice);
      all_ended = all_ended && choice.ended;
    }
    if (!failure.ok()) {
      Drop(running, ErrorOf(failure));
    } else if (all_ended) {
      Drop(running, std::nullopt);
    }
  }
}

void Engine::EndChoice(Running& running, Choice& choice) {
  choice.ended = true;
  choice.chosen.reset();
  Snapshot after;
  if (running.job.keep) after = std::make_shared<const Session>(std::move(choice.session));
  running.job.listener->OnChoiceEnd(choice.index, *choice.finished, choice.tokens, after);
}

void Engine::FailAll(const Status& status) {
  for (auto at = running_.begin(); at != running_.end();) {
    const auto running = at++;
    if (!(*running)->reading()) Drop(running, ErrorOf(status));
  }
}

void Engine::Measure() {
  int64_t sequences = 0;
  for (const auto& running : running_) sequences += running->job.choices;
  metrics_->running = sequences;
  if (sequences == 0) metrics_->state_bytes = 0;
}

}  // namespace tensorcache::server
