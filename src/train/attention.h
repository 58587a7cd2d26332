// The attention sub-layer: projections, attention over the window, and what the layer's cache method does about the rest.
#pragma once

#include "train/methods/train_method.h"

namespace tensorcache::train {

// x (B, T, E), normalised -> (B, T, E). With a state the block continues it, and the state moves on; without, the block is a
// sequence of its own.
Tensor Attention(const AttentionParameters& parameters, const Tensor& x, int64_t layer, LayerState* state,
                 ForwardContext& context);

// What is between the projections: the method's state moves on.
struct Attended {
  Tensor local;    // (B, T, H, D): of the window, and the sinks
  Tensor reads{};  // (B, T, H, D): of the memory; undefined if the layer has none
};
Attended Attend(const LayerBlock& block, MethodState& state);

}  // namespace tensorcache::train
