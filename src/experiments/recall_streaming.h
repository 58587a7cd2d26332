// Associative recall as a stream: after each ANSWER the model says what it thinks was stored.
#pragma once

#include <cstdint>
#include <memory>

#include "data/recall_task.h"
#include "experiments/task_streaming.h"
#include "tensorcache/model.h"
#include "tensorcache/status.h"

namespace tensorcache::experiments {

struct RecallStreamOptions {
  data::RecallConfig task;
  int64_t rows = 256;
  uint64_t seed = 1;  // of the sequences; training draws its own from other seeds
  // Method full beyond the trained length: scale the rotary embedding, as the paper does.
  bool scale_full = true;
};

// The task's tokens must mean what they meant in training: the same numbers of keys, values and fillers.
Result<TaskScore> StreamRecall(const std::shared_ptr<const Model>& model, const RecallStreamOptions& options);

// Bytes of one sequence's state at the end of a sequence of the task.
Result<int64_t> RecallStateBytes(const std::shared_ptr<const Model>& model, const data::RecallConfig& task);

}  // namespace tensorcache::experiments
