// What follows from the options of method tensor_cache, for both halves.
#pragma once

#include <cstdint>

#include "methods/method.h"

namespace tensorcache::methods {

// The memories of one key/value head: memory z = timescale * slots + slot is a matrix (Dk, Dv).
struct TensorCacheSizes {
  explicit TensorCacheSizes(const LayerPlace& place);

  int64_t G, R, D;  // R query heads share a key/value head
  int64_t Dk;       // rows: D, or what features make of it
  int64_t Dv;       // columns: one more than D carries the normaliser of read.normalize
  int64_t timescales, slots;
  int64_t lag;         // tokens that are in the window but not yet in the memory
  int64_t taps;        // of the convolutions
  int64_t kept;        // rows before a query or a value that their convolutions look back to: taps - 1
  int64_t kept_keys;   // the same of keys: one more if they are shifted
  int64_t decays;      // numbers per token and head that change the decay: one for each timescale, or none
  int64_t strengths;   // the same for the strength
  double least_decay;  // -log lambda is more than this: log 2 / max_half_life
  int64_t memories() const { return timescales * slots; }
  int64_t gates() const { return decays + strengths; }  // decays first
};

// log lambda = log sigmoid(logit) - least_decay, and back.
double LogDecay(double logit, const TensorCacheSizes& sizes);
double DecayLogit(double lambda, const TensorCacheSizes& sizes);

// Whether training writes once a chunk; inference never does.
bool WritesInChunks(const TensorCacheConfig& config);

// Whether what the scan reads is what the layer reads, but for the norm: nothing is mixed, divided or scaled.
bool ReadsAreFinal(const TensorCacheConfig& config, const TensorCacheSizes& sizes);

// Run half.
Result<std::unique_ptr<const Layer>> MakeTensorCacheLayer(const Method& method, const TwoLevelCacheConfig& config,
                                                          int64_t layer, const LearnedNumbers& numbers);
Result<std::unique_ptr<const Fusion>> MakeTensorCacheFusion(const Method& method, const LayerPlace& place,
                                                            const LearnedNumbers& numbers);

}  // namespace tensorcache::methods
