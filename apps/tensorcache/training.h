// A training run with its progress on the terminal: what the commands that train have in common.
#pragma once

#include <string>

#include "tensorcache/status.h"
#include "train/train_config.h"

namespace tensorcache::cli {

struct TrainingCommand {
  std::string command;  // "train": which one goes on with the run
  std::string out;
  bool resume = false;
  int threads = 0;  // 0: all cores
};

// Progress on stderr, results on stdout.
Status TrainInFolder(const train::TrainConfig& config, const TrainingCommand& command);

}  // namespace tensorcache::cli
