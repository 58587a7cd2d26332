// Output projection and divergence from another model's predictions in one op that never holds the logits of more than some
// rows at a time.
#pragma once

#include "train/ops/backend.h"

namespace tensorcache::train {

struct DistillationInputs {
  Tensor hidden;          // (N, E)
  Tensor weight;          // (V, E)
  Tensor teacher_hidden;  // (N, E'), never gets a gradient
  Tensor teacher_weight;  // (V, E')
  Tensor targets;         // (N) int64; rows with -1 do not count
  double temperature = 1;
};

// The sum over rows with a target of tau^2 KL(p || q), p = softmax(teacher logits / tau), q = softmax(logits / tau): the factor
// keeps the gradients' size whatever tau is. A scalar in float32 (float64 for float64 inputs). Gradients are computed in the
// forward pass, chunk by chunk; the backward pass hands them over, so it can run only once.
Tensor Distillation(const DistillationInputs& inputs, Backend backend = Backend::kAuto);

}  // namespace tensorcache::train
