// What all caches of one config share (CacheSpec), and what a layer of one cache holds (LayerArrays).
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/rope/rope.h"
#include "runtime/buffer.h"
#include "tensorcache/cache.h"

namespace tensorcache::runtime {

// The learned numbers of one layer's memory, as the kernels want them.
struct MemorySpec {
  bool present = false;           // a memory of evicted pairs (method tensor_cache)
  std::vector<float> log_lambda;  // (G, timescales)
  std::vector<float> eta;         // (G, timescales)
  std::vector<float> slot_keys;   // (G, slots, D), of unit length
  float slow_weight = 0;          // sigmoid(alpha)
};

struct CacheSpec {
  TwoLevelCacheConfig config;
  RopeFrequencies frequencies;
  std::vector<MemorySpec> memories;  // one a layer

  int64_t H() const { return config.query_heads; }
  int64_t G() const { return config.kv_heads; }
  int64_t R() const { return config.query_heads / config.kv_heads; }
  int64_t D() const { return config.head_dim; }
  bool IsFull() const { return config.cache.method == CacheMethod::kFull; }
  bool IsInfini() const { return config.cache.method == CacheMethod::kInfini; }
  // Method streaming_llm: S, else 0.
  int64_t Sinks() const { return config.cache.method == CacheMethod::kStreamingLlm ? config.cache.sinks : 0; }
  int64_t Timescales() const { return config.cache.tensor_cache.two_timescale ? 2 : 1; }
  int64_t Slots() const { return config.cache.tensor_cache.slots; }
  // Matrices a key/value head.
  int64_t Memories() const { return IsInfini() ? 1 : Timescales() * Slots(); }
  // Columns of a matrix: one more carries the normaliser of normalize_reads.
  int64_t Dv() const { return D() + (!IsInfini() && config.cache.tensor_cache.normalize_reads ? 1 : 0); }
  // Tokens that are in the window but not yet in the memory.
  int64_t Lag() const { return config.cache.tensor_cache.write == MemoryWrite::kInsert ? 0 : config.cache.window; }
  bool HasMemory(int64_t layer) const { return IsInfini() || memories[static_cast<size_t>(layer)].present; }
  int64_t RingBytes() const { return config.ring == RingType::kBf16 ? 2 : 4; }  // a number
};

// Checks config and parameters.
Result<CacheSpec> MakeCacheSpec(const TwoLevelCacheConfig& config, std::vector<MemoryParameters> memories);

// The state of one layer. Token p is in row p % capacity of the ring.
struct LayerArrays {
  int64_t capacity = 0;   // rows of the ring a head; method full: grows
  Buffer k, v;            // (G, capacity, D), fp32 or bf16; keys rotated
  Buffer sink_k, sink_v;  // (G, S, D); keys rotated at their index in the cache
  Buffer memory;          // (G, memories, D, Dv)
  Buffer normalizer;      // (G, D): z of Infini-attention

  LayerArrays(const CacheSpec& spec, int64_t layer);
  // A copy with room for `capacity` tokens, of which `tokens` (at most both capacities) are kept.
  LayerArrays(const LayerArrays& other, const CacheSpec& spec, int64_t tokens, int64_t capacity);
};

// Arrays that forks share until one of them writes.
class SharedArrays {
 public:
  explicit SharedArrays(LayerArrays&& arrays) : shared_(new Shared{.arrays = std::move(arrays), .users = {1}}) {}
  SharedArrays(const SharedArrays& other) : shared_(other.shared_) {
    shared_->users.fetch_add(1, std::memory_order_relaxed);
  }
  SharedArrays& operator=(SharedArrays other) {
    std::swap(shared_, other.shared_);
    return *this;
  }
  ~SharedArrays() {
    if (shared_->users.fetch_sub(1, std::memory_order_acq_rel) == 1) delete shared_;
  }

  const LayerArrays& operator*() const { return shared_->arrays; }
  const LayerArrays* operator->() const { return &shared_->arrays; }
  // Only for the sole user.
  LayerArrays& Mutable() { return shared_->arrays; }
  // Whether nobody else looks at the arrays: what others did before they let go has happened before.
  bool IsSole() const { return shared_->users.load(std::memory_order_acquire) == 1; }

 private:
  struct Shared {
    LayerArrays arrays;
    std::atomic<int64_t> users;
  };
  Shared* shared_;
};

}  // namespace tensorcache::runtime
