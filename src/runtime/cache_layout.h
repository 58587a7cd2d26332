// What all caches of one config share (CacheSpec), and what a layer of one cache holds (LayerArrays).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "methods/head.h"
#include "runtime/state_size.h"
#include "tensorcache/cache.h"
#include "tensorcache/kernels/rope.h"

namespace tensorcache::runtime {

struct CacheSpec {
  // One layer: its method at work, and the arrays that the method keeps.
  struct Layer {
    std::unique_ptr<const methods::Layer> method;
    std::vector<methods::StateArray> arrays;
    int64_t gates = 0;  // numbers per token and head that come with q, k and v
  };

  TwoLevelCacheConfig config;
  RopeFrequencies frequencies;
  std::vector<Layer> layers;
  bool keeps_everything = false;

  int64_t H() const { return config.query_heads; }
  int64_t G() const { return config.kv_heads; }
  int64_t R() const { return config.query_heads / config.kv_heads; }
  int64_t D() const { return config.head_dim; }
  int64_t RingBytes() const { return runtime::RingBytes(config.ring); }
  const Layer& At(int64_t layer) const { return layers[static_cast<size_t>(layer)]; }
};

// Checks config and parameters.
Result<CacheSpec> MakeCacheSpec(const TwoLevelCacheConfig& config, std::vector<LearnedNumbers> memories);

// The state of one layer. Token p is in row p % capacity of the ring.
struct LayerArrays {
  int64_t capacity = 0;           // rows of the ring a head; a method that keeps everything: grows
  Buffer k, v;                    // (G, capacity, D), fp32 or bf16; keys rotated
  std::vector<Buffer> of_method;  // float32, (G, ...) each: what the method keeps

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
