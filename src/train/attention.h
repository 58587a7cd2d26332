// The attention sub-layer: projections, attention over the window, and what each cache method does about the rest.
#pragma once

#include "train/forward.h"
#include "train/parameters.h"
#include "train/state.h"

namespace tensorcache::train {

// x (B, T, E), normalised -> (B, T, E). With a state the block continues it, and the state moves on; without, the block is a
// sequence of its own.
Tensor Attention(const AttentionParameters& parameters, const Tensor& x, LayerState* state, ForwardContext& context);

}  // namespace tensorcache::train
