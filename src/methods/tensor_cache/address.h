// What the memory sees of queries, keys and values: rotated or not, under the key of the token before, convolved over time, of
// unit length, mapped to features; in this order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "methods/head.h"
#include "methods/tensor_cache/tensor_cache.h"
#include "tensorcache/cache.h"
#include "tensorcache/kernels/rows.h"

namespace tensorcache::methods {

// Weights of the convolutions; empty without them.
struct AddressWeights {
  std::vector<float> conv_q;          // (H, taps, D)
  std::vector<float> conv_k, conv_v;  // (G, taps, D)
};

// What a head keeps for its convolutions; null where that is nothing.
struct KeptRows {
  float* q = nullptr;  // (R, kept, D): the last queries
  float* k = nullptr;  // (kept_keys, D): the last keys that were written, as they are before the convolution
  float* v = nullptr;  // (kept, D)
};

// Keys and values of tokens that follow each other, as the window has them.
struct WindowRows {
  int64_t tokens = 0;
  Rows<const float> k, v;  // (tokens, D)
  RopeRows back;           // turns the keys back; null: they need not be
};

// The same as they are written: (tokens, Dk) and (tokens, Dv), dense.
struct WrittenRows {
  const float* k = nullptr;
  const float* v = nullptr;
};

// Of one layer. Immutable.
class Address {
 public:
  Address(const TwoLevelCacheConfig& config, const TensorCacheSizes& sizes, AddressWeights weights);

  // The block's queries, (R, T, Dk). Moves kept.q on.
  Rows<const float> Queries(const HeadBlock& in, const KeptRows& kept, Arena& arena) const;

  // Whether keys and values are written as the window has them.
  bool in_place() const { return in_place_; }
  // The block's own keys and values. Those that pass through a bf16 window are what the window makes of them.
  WindowRows Block(const HeadBlock& in) const;
  // Keys and values that stand one after the other in `parts`, of which the first `written` are written now: kept.k and
  // kept.v move on by these.
  WrittenRows Written(int64_t head, std::span<const WindowRows> parts, int64_t written, const KeptRows& kept,
                      Arena& arena) const;
  // The positions of tokens whose keys may have to be turned back, for a block of `tokens` tokens at `position`: those of the
  // window, oldest first; of a single step, that of the token it evicts.
  std::vector<int64_t> TurnedBack(int64_t position, int64_t tokens) const;
  // Rows for the window's tokens from the `first` on.
  RopeRows BackFrom(const HeadBlock& in, int64_t first) const;

 private:
  float* Features(const Rows<const float>& rows, int64_t heads, int64_t tokens, Arena& arena) const;
  const float* Values(int64_t head, const float* rows, int64_t tokens, Arena& arena) const;

  MemoryAddressOptions options_;
  TensorCacheSizes n_;
  AddressWeights weights_;
  RopePairing pairing_;
  bool in_place_;
  bool through_bf16_;  // the memory gets keys that a bf16 window held
  int64_t window_;
};

}  // namespace tensorcache::methods
