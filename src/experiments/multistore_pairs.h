// 2 to 32 pairs an episode, one of which is asked for: accuracy against pairs, and against the bytes of the state.
#pragma once

#include <string>
#include <vector>

#include "experiments/experiment.h"

namespace tensorcache::experiments {

// The models, and those they start from.
Result<std::vector<TrainJob>> PairsJobs(const ExperimentOptions& options);
// How they are trained and asked, in some sentences.
Result<std::string> PairsSetup(const ExperimentOptions& options);
// Appends tables, figures, findings and runs.
Status MeasurePairs(const MeasureContext& context, ExperimentResult* result);

}  // namespace tensorcache::experiments
