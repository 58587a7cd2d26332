// Associative recall as a stream: a trained model reads the task token by token, and says after each ANSWER what it
// thinks was stored.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "data/recall_task.h"
#include "tensorcache/model.h"
#include "tensorcache/status.h"

namespace tensorcache::experiments {

struct RecallScore {
  double accuracy = 0;  // of the most likely token
  double nll = 0;       // mean, nats
  int64_t answers = 0;
  int64_t state_bytes = 0;  // of one sequence at its end
};

struct RecallStreamOptions {
  data::RecallConfig task;
  int64_t rows = 256;
  uint64_t seed = 1;  // of the sequences; training draws its own from other seeds
  // Method full beyond the trained length: scale the rotary embedding, as the paper does.
  bool scale_full = true;
};

// The task's tokens must mean what they meant in training: the same numbers of keys, values and fillers.
Result<RecallScore> StreamRecall(const std::shared_ptr<const Model>& model, const RecallStreamOptions& options);

// -log softmax(logits)[token]
double NegativeLogProbability(std::span<const float> logits, int32_t token);

// Bytes of one sequence's state at the end of a sequence of the task.
Result<int64_t> RecallStateBytes(const std::shared_ptr<const Model>& model, const data::RecallConfig& task);

}  // namespace tensorcache::experiments
