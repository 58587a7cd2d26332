// The feed-forward layer as one differentiable op: down(act(gate(x)) * up(x)), or down(act(up(x))) without gate.
#pragma once

#include "tensorcache/choices.h"
#include "train/ops/backend.h"

namespace tensorcache::train {

// Weights are (out, in); undefined biases are none. `in_weight` is up's (F, E), or with a gate both in one, gate's rows first:
// (2 F, E).
struct MlpInputs {
  Tensor x;  // (..., E)
  Tensor in_weight;
  Tensor in_bias{};
  Tensor down_weight;  // (E, F)
  Tensor down_bias{};
  Activation activation = Activation::kGelu;
  bool gated = false;
};

// (..., E). Keeps the input and the projections before the activation for the gradient; the activation itself is
// computed again, which is cheaper than the memory it would take.
Tensor Mlp(const MlpInputs& inputs, Backend backend = Backend::kAuto);

}  // namespace tensorcache::train
