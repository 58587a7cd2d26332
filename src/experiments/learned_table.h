// What training made of the memories' parameters.
#pragma once

#include <string>
#include <vector>

#include "experiments/lab.h"
#include "experiments/result.h"

namespace tensorcache::experiments {

// Gate, lambda and eta of each layer, means and deviations over the runs.
Table LearnedTable(const std::string& id, const std::string& title, const std::vector<TrainedRun>& runs);

}  // namespace tensorcache::experiments
