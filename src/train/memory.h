// The second level of the cache inside a layer: what is written into the memory, and how it is read.
#pragma once

#include "train/forward.h"
#include "train/parameters.h"
#include "train/state.h"

namespace tensorcache::train {

// A block's queries, keys and values as the memory sees them, and the ring before the block.
struct MemoryBlock {
  Tensor q;               // (B, T, H, D)
  Tensor k;               // (B, T, G, D)
  Tensor v;               // (B, T, G, D)
  Tensor past_k, past_v;  // (B, G, P, D), oldest first; undefined: none
  Tensor initial{};       // the state's memory
  Tensor normalizer{};    // the state's z, Infini only
};

struct MemoryResult {
  Tensor reads;         // (B, T, H, D)
  Tensor memory;        // after the block
  Tensor normalizer{};  // after the block, Infini only
};

// Tensor Cache: writes what the window evicts (or as `write` says), with slots and timescales.
MemoryResult TensorCacheMemory(const AttentionParameters& parameters, const MemoryBlock& block,
                               const ForwardContext& context);

// Infini-attention: writes every token; reads are normalised.
MemoryResult InfiniMemory(const MemoryBlock& block, const ForwardContext& context);

}  // namespace tensorcache::train
