// The memory (L2) of one key/value head: Tensor Cache's, with all its options, and Infini-attention's.
#pragma once

#include "kernels/rows.h"
#include "kernels/window_attention/window_attention.h"
#include "runtime/cache_head.h"

namespace tensorcache::runtime {

// A block as the head sees it.
struct HeadRows {
  const float* q = nullptr;  // (R, T, D) dense, rotated
  const float* k = nullptr;  // (T, D) dense, rotated
  Rows<const float> v;       // (T, D)
  Rows<const float> plain_q, plain_k;
};

// The pair that leaves the window; null: none does.
struct EvictedPair {
  const float* k = nullptr;
  const float* v = nullptr;
};

// A block of one token: writes what it evicts (or itself, where tokens are written on arrival), and reads.
void StepMemory(const HeadBlock& in, const HeadRows& rows, const EvictedPair& evicted, Arena& arena);

// A block of any length, after the `past_tokens` tokens of the window.
Status ScanMemory(const HeadBlock& in, const HeadRows& rows, const KeyValueRing<float>& past, int64_t past_tokens,
                  Arena& arena);

}  // namespace tensorcache::runtime
