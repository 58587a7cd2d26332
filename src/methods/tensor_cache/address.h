// What the memory sees of queries, keys and values.
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "methods/head.h"
#include "tensorcache/cache.h"
#include "tensorcache/kernels/rows.h"

namespace tensorcache::methods {

// Of one layer. Immutable.
class Address {
 public:
  Address(const TwoLevelCacheConfig& config, int64_t lag);

  // The block's queries, (R, T, D).
  Rows<const float> Queries(const HeadBlock& in, Arena& arena) const;
  // The block's keys, (T, D). Those that pass through a bf16 window are what the window makes of them.
  Rows<const float> BlockKeys(const HeadBlock& in, Arena& arena) const;

  // Whether keys of the window have to be copied to be what the memory sees: turned back, or made unit vectors.
  bool copies_keys() const { return !options_.rope || options_.normalize_keys; }
  // Such copies, (tokens, D) dense: of the window's oldest tokens, whose keys are `keys`.
  const float* PastKeys(const HeadBlock& in, int64_t tokens, const Rows<const float>& keys, Arena& arena) const;
  // The positions of tokens that PastKeys may have to turn back, for a block of `tokens` tokens at `position`.
  std::vector<int64_t> TurnedBack(int64_t position, int64_t tokens) const;

 private:
  float* Keys(const Rows<const float>& keys, int64_t tokens, RopeRows back, Arena& arena) const;

  MemoryAddressOptions options_;
  RopePairing pairing_;
  bool through_bf16_;  // the memory gets keys that a bf16 window held
  int64_t window_, D_;
};

// (tokens, D) rows followed by a one: (tokens, D + 1) dense.
const float* WithOnes(const Rows<const float>& rows, int64_t tokens, int64_t D, Arena& arena);
// The rows of the window that lie in a ring, oldest first and dense.
const float* InOrder(const Rows<const float>& rows, const PastWindow& past, int64_t D, Arena& arena);

}  // namespace tensorcache::methods
