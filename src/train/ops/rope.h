// Rotary embedding as differentiable ops: tensorcache/kernels/rope.h has the formula.
#pragma once

#include <cstdint>

#include "tensorcache/kernels/rope.h"
#include "train/ops/backend.h"

namespace tensorcache::train {

struct RopeTable {
  Tensor cos;  // (T, D / 2), float32
  Tensor sin;
  RopePairing pairing = RopePairing::kHalfSplit;
};

// Of positions first .. first + tokens - 1, or of `positions`; exact at any position. On `device`.
RopeTable MakeRopeTable(const RopeFrequencies& frequencies, RopePairing pairing, int64_t first, int64_t tokens,
                        at::Device device);
RopeTable MakeRopeTable(const RopeFrequencies& frequencies, RopePairing pairing, std::span<const int64_t> positions,
                        at::Device device);

// x (B, T, heads, D), rotated, or rotated back. The result is contiguous.
Tensor Rope(const Tensor& x, const RopeTable& table, bool inverse = false, Backend backend = Backend::kAuto);

// The fused q, k, v projection: x (B, T, E) times weight (heads * D, E) plus bias (undefined: none), as (B, T, heads, D),
// of which the first `rotated_heads` heads are rotated.
struct RotaryProjection {
  Tensor x;
  Tensor weight;
  Tensor bias{};
  int64_t head_dim = 0;
  int64_t rotated_heads = 0;
  RopeTable table;
};
Tensor ProjectRotary(const RotaryProjection& args, Backend backend = Backend::kAuto);

// Heads as they were projected and as they are rotated, from x (B, T, H + 2 G, D) without rotation. Those that are not rotated
// lie in x. Values are there twice for the gradients: what comes of all six goes into one gradient of x.
struct SplitHeads {
  Tensor q, k;              // (B, T, H, D), (B, T, G, D), rotated
  Tensor v;                 // (B, T, G, D)
  Tensor plain_q, plain_k;  // not rotated
  Tensor plain_v;           // v
};
SplitHeads SplitAndRotate(const Tensor& x, int64_t query_heads, const RopeTable& table,
                          Backend backend = Backend::kAuto);

}  // namespace tensorcache::train
