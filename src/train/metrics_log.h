// metrics.jsonl: what a run measured, one JSON object a line, in the order of the steps.
#pragma once

#include <string>

#include "core/file.h"
#include "core/json.h"
#include "train/trainer.h"

namespace tensorcache::train {

struct StepTime {
  double seconds = 0;
  double cpu_seconds = 0;  // of all threads of this process; other programs on the machine change it little
};
OrderedJson TrainRecord(const StepMetrics& metrics, const StepTime& time);
OrderedJson EvalRecord(int64_t step, const EvalMetrics& metrics, bool best);
// `step` is the one that could not be made.
OrderedJson DivergedRecord(int64_t step, const std::string& why);

class MetricsLog {
 public:
  // Opens folder/metrics.jsonl for appending. What is there of steps after `step` is dropped first: the run goes on from
  // there and will write it again.
  static Result<MetricsLog> Open(const std::string& folder, int64_t step);

  // One line, or none after an error.
  Status Append(const OrderedJson& record) { return file_.Append(record.dump() + "\n"); }

 private:
  explicit MetricsLog(AppendedFile file) : file_(std::move(file)) {}

  AppendedFile file_;
};

}  // namespace tensorcache::train
