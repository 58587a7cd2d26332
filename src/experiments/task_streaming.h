// A synthetic task as a stream: a trained model reads its rows token by token, and at each token with a target says
// what it thinks follows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "data/batch.h"
#include "tensorcache/model.h"
#include "tensorcache/status.h"

namespace tensorcache::experiments {

struct TaskScore {
  double accuracy = 0;  // of the most likely token
  double nll = 0;       // mean, nats
  int64_t answers = 0;
  int64_t state_bytes = 0;  // of one sequence at its end
};

struct TaskStreamOptions {
  int64_t rows = 256;
  // Method full beyond the trained length: scale the rotary embedding, as the paper does.
  bool scale_full = true;
  // Read what stands before the first target as one block. The same result, up to rounding, sooner.
  bool prefill = false;
};

// Validation rows of the source, from the first on, each from an empty session. The source's tokens must be the
// model's.
Result<TaskScore> StreamTask(const std::shared_ptr<const Model>& model, const data::BatchSource& source,
                             const TaskStreamOptions& options);

// -log softmax(logits)[token]
double NegativeLogProbability(std::span<const float> logits, int32_t token);

// Bytes of one sequence's state after so many tokens.
Result<int64_t> StateBytesAfter(const std::shared_ptr<const Model>& model, int64_t tokens);

}  // namespace tensorcache::experiments
