// The thread that owns the model. It takes jobs, reads their prompts in blocks between steps of writing, so that a long prompt
// does not make the others wait for longer than a block, writes with all sequences as one batch, and drops what nobody reads.
//
// A prompt is always cut at the same places, whatever else runs: what is written depends on the request alone.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/error.h"
#include "server/metrics.h"
#include "server/token_scores.h"
#include "tensorcache/model.h"
#include "tensorcache/sampling.h"
#include "tensorcache/session.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::server {

enum class FinishReason { kStop, kLength };

struct GenerationOptions {
  SamplingOptions sampling;
  LogitChanges changes;
  std::vector<std::string> stop;
  int64_t max_tokens = 16;
  bool ignore_end = false;    // whether the end-of-text token is one like the others
  int64_t logprobs = -1;      // score the tokens of the reply, with so many of the most likely ones; -1: do not
  bool score_prompt = false;  // and those of the prompt
};

using Snapshot = std::shared_ptr<const Session>;

// Hears what becomes of a job, on the engine's thread: nothing may block or throw.
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;
  // False: nobody reads the reply any more. Asked between blocks and steps.
  virtual bool wanted() const = 0;
  // The prompt was read. `scores` if they were asked for; `after` if the job is to be kept.
  virtual void OnPrompt(std::vector<TokenScore> scores, Snapshot after) = 0;
  // Text of a choice, perhaps none, and the scores of the token that it came with, if they were asked for. Characters are
  // whole, and nothing of a stop string is among them.
  virtual void OnText(int64_t choice, std::string text, std::vector<TokenScore> scores) = 0;
  // `tokens`: of the reply. `after`: with the whole reply, but for an end-of-text token, if the job is to be kept.
  virtual void OnChoiceEnd(int64_t choice, FinishReason reason, int64_t tokens, Snapshot after) = 0;
  // The last call: all choices have ended, or an error. A job that nobody wanted any more ends without an error.
  virtual void OnEnd(const MaybeError& error) = 0;
};

struct GenerationJob {
  Snapshot from;                // the text that is gone on with; null: a new one
  std::vector<int32_t> prompt;  // tokens of the vocabulary; at least one if the text is new
  int64_t choices = 1;          // each with a seed of its own, made from that of the options
  GenerationOptions options;
  bool keep = false;  // hand over the states
  std::shared_ptr<GenerationListener> listener;
};

struct EngineOptions {
  int64_t max_batch = 32;                // sequences that run at the same time
  int64_t queue = 256;                   // jobs that wait
  std::vector<int32_t> end_tokens = {};  // that end a reply, besides the tokenizer's own
};

class Engine {
 public:
  // `metrics` must outlive the engine.
  Engine(std::shared_ptr<const Model> model, std::shared_ptr<const Tokenizer> tokenizer, const EngineOptions& options,
         Metrics* metrics);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Takes all of the jobs, or none: if the queue is full or the options are impossible, no listener is ever called.
  MaybeError Submit(std::vector<GenerationJob> jobs);

  // Ends everything that runs or waits with an error, and takes nothing more. Not from several threads at once.
  void Stop();

  const std::shared_ptr<const Model>& model() const { return model_; }
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }
  const EngineOptions& options() const { return options_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Choice;
  struct Running;

  MaybeError Check(const GenerationJob& job) const;
  bool Ends(int32_t token) const;
  void Loop();
  // Waits until there is something to do; false: stop.
  bool TakeJobs();
  void Drop(const std::list<std::unique_ptr<Running>>::iterator& at, const MaybeError& error);
  void DropUnwanted();
  void ReadPrompts();
  Status ReadBlock(Running& running);
  Status PromptIsRead(Running& running);
  Status WriteStep();
  // Chooses the next token of a choice.
  Status Choose(Running& running, Choice& choice, std::span<float> logits);
  Status Accept(Running& running, Choice& choice, int32_t token, std::vector<TokenScore> scores);
  void DecodeChosen();
  void EndChoice(Running& running, Choice& choice);
  void FailAll(const Status& status);
  void Measure();

  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const EngineOptions options_;
  Metrics* const metrics_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::unique_ptr<Running>> queue_;  // guarded by mutex_
  bool stop_ = false;                           // guarded by mutex_

  std::list<std::unique_ptr<Running>> running_;  // the engine's thread's own, in the order of arrival
  std::vector<float> logits_;                    // (sequences, vocabulary), scratch
  std::thread thread_;
};

}  // namespace tensorcache::server
