// The short convolution as a differentiable op: tensorcache/kernels/short_conv.h has the formula.
#pragma once

#include "train/ops/backend.h"

namespace tensorcache::train {

// Views with any strides are fine. Gradients flow to every tensor that requires one.
struct ShortConvInputs {
  Tensor x;         // (B, T, H, D)
  Tensor weight{};  // (H, taps, D); undefined: no taps
  Tensor past{};    // (B, H, taps - 1, D), oldest first: the rows before the block; undefined: zeros
  bool unit = false;
};

// (B, T, H, D), contiguous. Computed in float32 if x is of a lower precision; dtype of x. The fused op keeps its
// inputs alone for the gradient, and has no second derivative.
Tensor ShortConv(const ShortConvInputs& inputs, Backend backend = Backend::kAuto);

}  // namespace tensorcache::train
