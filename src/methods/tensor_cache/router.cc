#include "methods/tensor_cache/router.h"

#include <algorithm>
#include <cmath>

#include "methods/rows_math.h"

namespace tensorcache::methods {
namespace {

int64_t Largest(const float* x, int64_t n) { return std::max_element(x, x + n) - x; }

}  // namespace

Router::Router(const MemoryRouterOptions& options, int64_t width, std::vector<float> slot_keys)
    : D_(width),
      slots_(options.slots),
      top_k_(options.top_k),
      by_key_(options.by == RouteBy::kKey),
      scale_(1 / (std::sqrt(static_cast<double>(width)) * options.temperature)),
      keys_(std::move(slot_keys)) {
  for (size_t i = 0; i < keys_.size(); i += static_cast<size_t>(D_)) UnitLength(&keys_[i], D_, &keys_[i]);
}

// <x, slot key> / (sqrt(D) tau) of unit vectors, for each slot.
void Router::Logits(int64_t head, const float* x, float* logits) const {
  const float norm = 1 / std::sqrt(Dot(x, x, D_) + 1e-12f);
  const float* keys = keys_.data() + head * slots_ * D_;
  for (int64_t s = 0; s < slots_; ++s) {
    logits[s] = Dot(x, keys + s * D_, D_) * norm * static_cast<float>(scale_);
  }
}

int64_t Router::RouteByKey(int64_t head, const float* k, Arena& arena) const {
  float* logits = arena.Take(slots_);
  Logits(head, k, logits);
  return Largest(logits, slots_);
}

int64_t Router::RouteByQuery(int64_t head, const Rows<const float>& q, int64_t R, int64_t t, Arena& arena) const {
  float* sum = arena.Take(slots_);
  float* logits = arena.Take(slots_);
  std::fill(sum, sum + slots_, 0.0f);
  for (int64_t r = 0; r < R; ++r) {
    Logits(head, q.At(0, r, t), logits);
    for (int64_t s = 0; s < slots_; ++s) sum[s] += logits[s];
  }
  return Largest(sum, slots_);
}

const float* Router::ReadWeights(int64_t head, const Rows<const float>& q, int64_t R, int64_t T, Arena& arena) const {
  float* weights = arena.Take(R * T * slots_);
  float* sorted = arena.Take(slots_);
  for (int64_t row = 0; row < R * T; ++row) {
    float* w = weights + row * slots_;
    Logits(head, q.At(0, row / T, row % T), w);
    std::copy(w, w + slots_, sorted);
    std::nth_element(sorted, sorted + (top_k_ - 1), sorted + slots_, std::greater<>());
    const float least = sorted[top_k_ - 1], best = *std::max_element(w, w + slots_);
    int64_t left = top_k_ - std::count_if(w, w + slots_, [&](float x) { return x > least; });  // for those that tie
    float sum = 0;
    for (int64_t s = 0; s < slots_; ++s) {
      const bool chosen = w[s] > least || (w[s] == least && left-- > 0);
      w[s] = chosen ? std::exp(w[s] - best) : 0;
      sum += w[s];
    }
    for (int64_t s = 0; s < slots_; ++s) w[s] /= sum;
  }
  return weights;
}

}  // namespace tensorcache::methods
