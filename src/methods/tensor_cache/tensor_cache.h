// What follows from the options of method tensor_cache, for both halves.
#pragma once

#include <cstdint>

#include "methods/method.h"

namespace tensorcache::methods {

// The memories of one key/value head: memory z = timescale * slots + slot is a matrix (D, Dv).
struct TensorCacheSizes {
  explicit TensorCacheSizes(const LayerPlace& place);

  int64_t G, R, D;  // R query heads share a key/value head
  int64_t Dv;       // columns: one more than D carries the normaliser of read.normalize
  int64_t timescales, slots;
  int64_t lag;  // tokens that are in the window but not yet in the memory
  int64_t memories() const { return timescales * slots; }
};

// Whether training writes once a chunk; inference never does.
bool WritesInChunks(const TensorCacheConfig& config);

// Whether what the scan reads is what the layer reads: nothing is mixed, normalised or scaled.
bool ReadsAreFinal(const TensorCacheConfig& config, const TensorCacheSizes& sizes);

// Run half.
Result<std::unique_ptr<const Layer>> MakeTensorCacheLayer(const Method& method, const TwoLevelCacheConfig& config,
                                                          int64_t layer, const LearnedNumbers& numbers);
Result<std::unique_ptr<const Fusion>> MakeTensorCacheFusion(const Method& method, const LayerPlace& place,
                                                            const LearnedNumbers& numbers);

}  // namespace tensorcache::methods
