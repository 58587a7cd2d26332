// What the server's tests share: a small model that writes bytes.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/engine.h"
#include "tensorcache/model.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::server {

inline std::shared_ptr<const Model> SmallModel(PositionKind positions = PositionKind::kRope) {
  ModelConfig config{.vocab_size = 260,  // more than the tokenizer has
                     .hidden_size = 32,
                     .intermediate_size = 48,
                     .num_hidden_layers = 2,
                     .num_attention_heads = 2,
                     .num_key_value_heads = 2,
                     .max_position_embeddings = 64,
                     .position_embedding = positions,
                     .cache = {.method = CacheMethod::kWindow, .window = 16}};
  auto model = Model::Random(config, {.threads = 1, .prefill_block = 8}, 3);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *model;
}

// Remembers what it hears.
class Recorder : public GenerationListener {
 public:
  struct Reply {
    std::string text;
    std::vector<TokenScore> scores;
    FinishReason reason = FinishReason::kStop;
    int64_t tokens = 0;
    bool ended = false;
    Snapshot after;
  };

  explicit Recorder(int64_t choices = 1) : replies(static_cast<size_t>(choices)) {}

  bool wanted() const override { return still_wanted; }
  void OnPrompt(std::vector<TokenScore> scores, Snapshot after) override {
    prompt_scores = std::move(scores);
    after_prompt = std::move(after);
  }
  void OnText(int64_t choice, std::string text, std::vector<TokenScore> scores) override {
    Reply& reply = replies[static_cast<size_t>(choice)];
    reply.text += text;
    reply.scores.insert(reply.scores.end(), scores.begin(), scores.end());
    ++texts;
  }
  void OnChoiceEnd(int64_t choice, FinishReason reason, int64_t tokens, Snapshot after) override {
    Reply& reply = replies[static_cast<size_t>(choice)];
    reply.reason = reason;
    reply.tokens = tokens;
    reply.ended = true;
    reply.after = std::move(after);
  }
  void OnEnd(const MaybeError& end) override {
    const std::lock_guard lock(mutex_);
    error = end;
    ++ends;
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ends > 0; });
  }

  std::atomic<bool> still_wanted = true;
  std::atomic<int> texts = 0;
  std::vector<TokenScore> prompt_scores;
  Snapshot after_prompt;
  std::vector<Reply> replies;
  MaybeError error;
  int ends = 0;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

inline std::vector<int32_t> Bytes(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace tensorcache::server
