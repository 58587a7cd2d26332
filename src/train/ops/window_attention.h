// Window attention as a differentiable op: tensorcache/kernels/window_attention.h has the formula.
#pragma once

#include <cstdint>
#include <optional>

#include "train/ops/backend.h"

namespace tensorcache::train {

// Views with any strides are fine as long as rows are contiguous: parts of a fused projection, say. Cut that one with
// split_with_sizes, whose gradient is one concatenation; that of narrow is a zero-filled projection for each part.
// Undefined tensors stand for none. Gradients flow to every tensor that requires one.
struct WindowAttentionInputs {
  Tensor q;                       // (B, T, H, D)
  Tensor k;                       // (B, T, G, D)
  Tensor v;                       // (B, T, G, Dv)
  Tensor past_k{};                // (B, G, P, D), oldest first: the tokens before the block
  Tensor past_v{};                // (B, G, P, Dv)
  Tensor sink_k{};                // (B, G, S, D): the first tokens of the sequence
  Tensor sink_v{};                // (B, G, S, Dv)
  Tensor q_sink{};                // (B, T, H, D): the queries that meet the sinks; undefined: q
  int64_t window = 0;             // W; 0: unbounded
  int64_t position = 0;           // of the block's first token
  std::optional<double> scale{};  // default 1 / sqrt(D)
};

// (B, T, H, Dv), contiguous. The fused op keeps its inputs, its output and one number for each query for the gradient,
// and has no second derivative.
Tensor WindowAttention(const WindowAttentionInputs& inputs, Backend backend = Backend::kAuto);

// What WindowAttention calls for Backend::kComposite, after checking sizes. Matrix products in the inputs' dtype,
// softmax in float32 at least; memory is O(T (window + block)) for blocks of 64 to 512 queries.
Tensor WindowAttentionComposite(const WindowAttentionInputs& inputs);

}  // namespace tensorcache::train
