// One key/value head of one layer of one cache, and the query heads that share it: the unit of work of a cache. Heads do not
// know of each other.
#pragma once

#include "runtime/cache_layout.h"

namespace tensorcache::runtime {

// Cosines and sines, rows of D / 2; null: nothing is rotated.
struct RopeRows {
  const float* cos = nullptr;
  const float* sin = nullptr;
};

struct HeadBlock {
  const CacheSpec& spec;
  const MemorySpec& memory;
  LayerArrays& arrays;
  CacheBlock block;     // with strides filled in
  int64_t head;         // g
  int64_t position;     // of the block's first token
  RopeRows rope;        // for the block's tokens
  RopeRows sink_query;  // streaming_llm: for the block's queries as the sinks see them
  RopeRows past;        // memory_rope false: for the tokens of the window, oldest first
};

// Appends, attends, reads; the arrays move on.
Status AdvanceHead(const HeadBlock& in, Arena& arena);

}  // namespace tensorcache::runtime
