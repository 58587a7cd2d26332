// AdamW (decoupled weight decay) with clipping of the global gradient norm, and the learning-rate schedule.
#pragma once

#include <cstdint>
#include <vector>

#include "train/parameters.h"
#include "train/train_config.h"

namespace tensorcache::train {

// Linear warm-up, then cosine decay to min_learning_rate at the last step. `step` counts from 0.
double LearningRate(const TrainOptions& options, int64_t step);

class AdamW {
 public:
  // Keeps the parameters (they share storage with the model) and two moments for each that requires a gradient.
  AdamW(std::vector<NamedParameter> parameters, const TrainOptions& options);

  // One update from the parameters' gradients, which are then dropped. Returns the norm of all gradients before clipping;
  // if that is not finite, nothing is changed.
  double Step(double learning_rate);
  void ClearGradients();
  // The gradients, in order; zeros where the loss did not reach a parameter.
  std::vector<Tensor> Gradients() const;

  // What a checkpoint keeps, in a fixed order: "<parameter>", "<parameter>.m", "<parameter>.v". Shares storage.
  std::vector<StoredParameter> State() const;
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }

 private:
  double LearningRateMultiple(ParameterKind kind) const;
  double Decay(ParameterKind kind) const;

  struct Slot {
    NamedParameter parameter;
    Tensor m, v;
  };

  TrainOptions options_;
  std::vector<Slot> slots_;
  int64_t updates_ = 0;
};

}  // namespace tensorcache::train
