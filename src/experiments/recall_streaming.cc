#include "experiments/recall_streaming.h"

namespace tensorcache::experiments {

Result<TaskScore> StreamRecall(const std::shared_ptr<const Model>& model, const RecallStreamOptions& options) {
  TC_ASSIGN_OR_RETURN(const auto source, data::MakeRecallSource(options.task, options.seed));
  return StreamTask(model, *source, {.rows = options.rows, .scale_full = options.scale_full});
}

Result<int64_t> RecallStateBytes(const std::shared_ptr<const Model>& model, const data::RecallConfig& task) {
  return StateBytesAfter(model, task.Length());
}

}  // namespace tensorcache::experiments
