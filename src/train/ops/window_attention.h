// Window attention as a differentiable op: kernels/window_attention/window_attention.h has the formula.
#pragma once

#include <cstdint>
#include <optional>

#include "train/ops/backend.h"

namespace tensorcache::train {

// Views with any strides are fine as long as rows are contiguous (slices of a fused projection, say). Undefined tensors
// stand for none. Gradients flow to every tensor that requires one.
struct WindowAttentionInputs {
  Tensor q;                        // (B, T, H, D)
  Tensor k;                        // (B, T, G, D)
  Tensor v;                        // (B, T, G, Dv)
  Tensor past_k{};                 // (B, G, P, D), oldest first: the tokens before the block
  Tensor past_v{};                 // (B, G, P, Dv)
  Tensor sink_k{};                 // (B, G, S, D): the first tokens of the sequence
  Tensor sink_v{};                 // (B, G, S, Dv)
  Tensor q_sink{};                 // (B, T, H, D): the queries that meet the sinks; undefined: q
  int64_t window = 0;              // W; 0: unbounded
  int64_t position = 0;            // of the block's first token
  std::optional<double> scale{};   // default 1 / sqrt(D)
};

// (B, T, H, Dv), contiguous.
Tensor WindowAttention(const WindowAttentionInputs& inputs, Backend backend = Backend::kAuto);

}  // namespace tensorcache::train
