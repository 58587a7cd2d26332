// Several memories per head (slots): which one a token is written to, and which ones a query reads.
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "tensorcache/kernels/rows.h"
#include "tensorcache/tensor_cache_config.h"

namespace tensorcache::methods {

// Of one layer. Immutable.
class Router {
 public:
  Router() = default;
  // slot_keys (G, slots, width): width of the keys and queries that it compares with
  Router(const MemoryRouterOptions& options, int64_t width, std::vector<float> slot_keys);

  bool by_key() const { return by_key_; }
  // The slot that a token with key `k` (D) is written to.
  int64_t RouteByKey(int64_t head, const float* k, Arena& arena) const;
  // The slot that the step of query t writes to: the R heads of the group vote.
  int64_t RouteByQuery(int64_t head, const Rows<const float>& q, int64_t R, int64_t t, Arena& arena) const;
  // How much each of the queries (R, T, D) reads of each slot: a softmax over the top k, 0 for the others; (R, T, slots).
  const float* ReadWeights(int64_t head, const Rows<const float>& q, int64_t R, int64_t T, Arena& arena) const;

 private:
  void Logits(int64_t head, const float* x, float* logits) const;

  int64_t D_ = 0, slots_ = 1, top_k_ = 1;
  bool by_key_ = true;
  double scale_ = 1;
  std::vector<float> keys_;  // (G, slots, D), of unit length
};

}  // namespace tensorcache::methods
