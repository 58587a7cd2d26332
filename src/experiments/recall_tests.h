// Trained runs of recall, asked about another task than the one they were trained on.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "experiments/recall_runs.h"

namespace tensorcache::experiments {

// What the training task becomes. Keys, values and fillers stay: the tokens must mean what they meant.
struct RecallTest {
  std::optional<int64_t> gap = {};
  std::optional<int64_t> episodes = {};
  std::optional<int64_t> stores = {};
  int64_t rows = 0;  // sequences of a score; 0: RecallRows

  data::RecallConfig TaskOf(const TrainJob& job) const;
};

// As ScoreRecallRun and StateBytesOf, but what stands before a sequence's first answer is read as one block: the same
// result up to rounding, sooner.
Result<RecallScores> ScoreRecallTest(const MeasureContext& context, const RecallRun& run,
                                     const std::vector<uint64_t>& seeds, const RecallTest& test);
Result<double> TestStateBytes(const MeasureContext& context, const RecallRun& run, uint64_t seed, RingType window,
                              const RecallTest& test);

}  // namespace tensorcache::experiments
