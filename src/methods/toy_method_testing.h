// A cache method that only tests have, and the example of CONTRIBUTING.md: the window, and a running mean of all values.
//
//   m_t = 0.9 m_{t-1} + 0.1 v_t                 output = W_o (local + sigmoid(gate) m), a gate per query head
//
// train/toy_train_method_testing.h is its train half.
#pragma once

#include "core/scalar_math.h"
#include "methods/head.h"

namespace tensorcache::methods {

inline constexpr float kToyKeep = 0.9f;

class ToyLayer : public Layer {
 public:
  bool has_memory() const override { return true; }
  Status Step(const HeadBlock& block, const EvictedPair& /*evicted*/, Arena& /*arena*/) const override {
    return Advance(block);
  }
  Status Scan(const HeadBlock& block, const PastWindow& /*past*/, Arena& /*arena*/) const override {
    return Advance(block);
  }

 private:
  static Status Advance(const HeadBlock& block) {
    float* mean = block.arrays[0];
    for (int64_t t = 0; t < block.T; ++t) {
      for (int64_t i = 0; i < block.D; ++i) {
        mean[i] = kToyKeep * mean[i] + (1 - kToyKeep) * block.v.At(0, 0, t)[i];
        for (int64_t r = 0; r < block.R; ++r) block.reads.At(0, r, t)[i] = mean[i];
      }
    }
    return OkStatus();
  }
};

class ToyFusion : public Fusion {
 public:
  explicit ToyFusion(std::vector<double> gate_logits) : gate_logits_(std::move(gate_logits)) {}

  bool has_reads() const override { return true; }
  void Apply(const FusionRows& rows) const override {
    for (int64_t t = 0; t < rows.rows; ++t) {
      float* local = rows.local + t * rows.stride;
      for (int64_t i = 0; i < rows.width; ++i) {
        const auto gate = static_cast<float>(Sigmoid(gate_logits_[static_cast<size_t>(i / rows.D)]));
        local[i] += gate * local[rows.width + i];
      }
    }
  }

 private:
  std::vector<double> gate_logits_;  // (H)
};

class ToyMethod : public Method {
 public:
  std::string_view name() const override { return "running_mean"; }
  std::string_view title() const override { return "Running mean"; }
  std::string_view summary() const override { return "the last `window`, and a running mean of all values"; }

  bool HasMemory(const LayerPlace& /*place*/) const override { return true; }
  std::vector<StateArray> Arrays(const LayerPlace& place) const override {
    return {{.name = "mean", .shape = {place.head_dim}}};
  }
  std::vector<LearnedTensor> Tensors(const LayerPlace& place) const override {
    return {{.name = "gate", .shape = {place.query_heads}, .values = {0}}};
  }
  Result<std::unique_ptr<const Layer>> MakeLayer(const TwoLevelCacheConfig& /*config*/, int64_t /*layer*/,
                                                 const LearnedNumbers& /*numbers*/) const override {
    return std::unique_ptr<const Layer>(std::make_unique<ToyLayer>());
  }
  Result<std::unique_ptr<const Fusion>> MakeFusion(const LayerPlace& place,
                                                   const LearnedNumbers& numbers) const override {
    TC_ASSIGN_OR_RETURN(std::vector<double> gates, NumbersOf(Tensors(place)[0], numbers));
    return std::unique_ptr<const Fusion>(std::make_unique<ToyFusion>(std::move(gates)));
  }
};

// Its number; adds it when it is first asked for.
inline CacheMethod AddToyMethod() {
  static const ToyMethod method;
  static const CacheMethod number = AddMethod(method);
  return number;
}

}  // namespace tensorcache::methods
