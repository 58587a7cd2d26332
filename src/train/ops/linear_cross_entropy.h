// Output projection and cross entropy in one op that never holds the logits of more than some rows at a time.
#pragma once

#include <cstdint>

#include "train/ops/backend.h"

namespace tensorcache::train {

// The sum over rows with target >= 0 of -log softmax(hidden_n weight^T)[target_n], a scalar in float32 (float64 for float64
// inputs). hidden (N, E), weight (V, E), targets (N) int64, -1 for rows that do not count; those cost nothing. Gradients
// are computed in the forward pass, chunk by chunk, if they are wanted: memory is one chunk of logits, and one gradient each
// for hidden and weight. Fused, the backward pass hands those over, so it can run only once. Targets out of range throw.
Tensor LinearCrossEntropy(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                          Backend backend = Backend::kAuto);

// The same for each row, without gradients: (N), float32, 0 where the target is -1. `best`, if not null, gets the token with
// the highest logit of each row, (N) int64.
Tensor TokenNll(const Tensor& hidden, const Tensor& weight, const Tensor& targets, Tensor* best = nullptr);

}  // namespace tensorcache::train
