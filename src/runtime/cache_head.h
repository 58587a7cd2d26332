// One key/value head of one layer of one cache, and the query heads that share it: the unit of work of a cache. Heads do not
// know of each other.
#pragma once

#include "methods/head.h"
#include "runtime/cache_layout.h"

namespace tensorcache::runtime {

struct HeadWork {
  const CacheSpec& spec;
  const methods::Layer& method;
  LayerArrays& arrays;
  int64_t gates;                 // numbers per token that come with the head's q, k and v
  CacheBlock block;              // with strides filled in
  int64_t head;                  // g
  int64_t position;              // of the block's first token
  methods::RopeRows rope;        // for the block's tokens
  methods::RopeRows extra_rope;  // for what the method asked for
};

// Appends, attends, reads; the arrays move on. Throws std::bad_alloc.
Status AdvanceHead(const HeadWork& in, Arena& arena);

}  // namespace tensorcache::runtime
