// Small caches and sequences for the tests of caches.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/rng.h"
#include "tensorcache/cache.h"

namespace tensorcache::cache_testing {

inline constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 6, kGroup = kHeads / kKvHeads, kLayers = 2;
inline constexpr double kLambda = 0.9, kEta = 0.3;

inline TwoLevelCacheConfig Config(CacheMethod method) {
  TwoLevelCacheConfig config{.layers = kLayers, .query_heads = kHeads, .kv_heads = kKvHeads, .head_dim = kDim};
  config.cache.method = method;
  config.cache.window = 5;
  config.cache.sinks = 2;
  config.cache.tensor_cache.write.lambda_init = kLambda;
  config.cache.tensor_cache.write.eta_init = kEta;
  return config;
}

using Rows = std::vector<float>;

struct Sequence {
  explicit Sequence(int64_t n, uint64_t seed = 1) : tokens(n) {
    Rng rng(seed);
    for (auto [rows, heads] : {std::pair(&q, kHeads), std::pair(&k, kKvHeads), std::pair(&v, kKvHeads)}) {
      rows->resize(static_cast<size_t>(n * heads * kDim));
      for (float& x : *rows) x = static_cast<float>(rng.Normal());
    }
  }
  int64_t tokens;
  Rows q, k, v;
};

struct Outputs {
  Rows local, reads;  // (tokens, H, D), both
};

inline TwoLevelCache Make(const TwoLevelCacheConfig& config) {
  Result<TwoLevelCache> cache = TwoLevelCache::Create(config);
  EXPECT_TRUE(cache.ok()) << cache.status().message();
  return std::move(cache).value();
}

// Tokens [first, first + count) of the sequence through one layer; appends to `out`.
inline void Advance(TwoLevelCache& cache, int64_t layer, const Sequence& s, int64_t first, int64_t count,
                    Outputs* out) {
  CacheWorkspace workspace;
  const int64_t queries = kHeads * kDim, keys = kKvHeads * kDim;
  const auto at = static_cast<size_t>(first * queries);
  out->local.resize(at + static_cast<size_t>(count * queries), NAN);
  out->reads.resize(out->local.size(), NAN);
  const Status status = cache.Advance(layer,
                                      {.tokens = count,
                                       .q = &s.q[at],
                                       .k = &s.k[static_cast<size_t>(first * keys)],
                                       .v = &s.v[static_cast<size_t>(first * keys)],
                                       .local = &out->local[at],
                                       .reads = &out->reads[at]},
                                      workspace);
  ASSERT_TRUE(status.ok()) << status.message();
}

inline std::vector<CacheMethod> AllMethods() {
  std::vector<CacheMethod> methods;
  for (const auto& [method, name] : EnumNames(CacheMethod{})) methods.push_back(method);
  return methods;
}

inline void Feed(TwoLevelCache& cache, const Sequence& s, int64_t first, int64_t count, Outputs* out) {
  for (int64_t layer = 0; layer < kLayers; ++layer) Advance(cache, layer, s, first, count, out);
}

}  // namespace tensorcache::cache_testing
