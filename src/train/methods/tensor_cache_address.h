// What Tensor Cache's memory sees of a block: src/methods/tensor_cache/address.h, with gradients.
#pragma once

#include <cstdint>

#include "methods/tensor_cache/tensor_cache.h"
#include "train/methods/train_method.h"

namespace tensorcache::train {

// A block's queries, keys and values as the memory sees them, and the tokens of the window that it does not hold yet.
struct MemoryBlock {
  Tensor q;                   // (B, T, H, Dk)
  Tensor k;                   // (B, T, G, Dk)
  Tensor v;                   // (B, T, G, D)
  int64_t lag = 0;            // tokens between a query and the newest pair that it reads
  Tensor past_k{}, past_v{};  // (B, G, P, Dk) and (B, G, P, D), oldest first; undefined: none
};

// Moves on what the convolutions keep ("kept_q", "kept_k", "kept_v").
MemoryBlock MakeMemoryBlock(const LayerBlock& in, const methods::TensorCacheSizes& n, int64_t lag, MethodState& state);

// Log-decays and strengths of the block's tokens, (G, timescales), or (B, T, G, timescales) where tokens have their own, and of
// the window's, (B, P, G, timescales) there.
struct MemoryRates {
  Tensor log_decay, strength;
  Tensor past_log_decay{}, past_strength{};
};
// Moves on the gates that wait with their tokens in the window ("gates").
MemoryRates MakeMemoryRates(const LayerBlock& in, const methods::TensorCacheSizes& n, int64_t lag, MethodState& state);

// x / |x|
Tensor UnitLength(const Tensor& x);

}  // namespace tensorcache::train
