// A training run in a folder: data, steps, metrics, evaluations, checkpoints, and going on after a stop.
//
//   DIR/train.json             the complete config of the run
//   DIR/metrics.jsonl          one line per logged step and per evaluation
//   DIR/train_state.safetensors, config.json, model.safetensors, tokenizer files   the last checkpoint
//   DIR/best/                  the model with the lowest validation loss
//   DIR/.lock                  while the run goes on: no other may write there (core/folder.h)
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "train/trainer.h"

namespace tensorcache::train {

struct RunOptions {
  std::string folder;
  bool resume = false;
  WorldOptions world;
  const std::atomic<bool>* stop =
      nullptr;  // set it from a signal handler: the run saves and ends after the current step
};

// What a run tells while it goes; called on the first process only, all optional.
struct RunEvents {
  std::function<void(int64_t done, int64_t total)> on_tokenize;  // bytes
  std::function<void(const Trainer& trainer, int64_t tokens_per_step)> on_start;
  std::function<void(const StepMetrics& metrics, double tokens_per_second)> on_step;
  std::function<void(int64_t step, const EvalMetrics& metrics, bool best)> on_evaluation;
  std::function<void(int64_t step)> on_save;
};

struct RunResult {
  int64_t step = 0;
  bool stopped = false;         // before the last step, because it was asked to
  bool reached_target = false;  // train.target_loss, perhaps before the last step
  double best_loss = 0;
  EvalMetrics last;  // of the last evaluation in this run
};

// `config` as the user gave it. Never leaves the folder without its last checkpoint. kInvalidArgument if another run goes on
// in the folder.
Result<RunResult> RunTraining(const TrainConfig& config, const RunOptions& options, const RunEvents& events);

// The config of the run in `folder`, for resuming it.
Status ReadRunConfig(const std::string& folder, TrainConfig* config);

}  // namespace tensorcache::train
