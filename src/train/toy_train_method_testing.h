// The train half of the method that only tests have: methods/toy_method_testing.h has its formulas.
#pragma once

#include "methods/toy_method_testing.h"
#include "train/methods/train_method.h"

namespace tensorcache::train {

class ToyTrainMethod : public TrainMethod {
 public:
  Tensor Remember(const LayerBlock& block, MethodState& state) const override {
    const Tensor v = block.heads.v.to(at::kFloat);  // (B, T, G, D)
    const int64_t T = v.size(1), R = block.place.query_heads / block.place.kv_heads;
    const Tensor steps = at::arange(T, v.options());
    const Tensor ages = steps.unsqueeze(1) - steps;  // of value s at step t
    const Tensor weights = at::pow(methods::kToyKeep, ages).tril() * (1 - methods::kToyKeep);
    Tensor means = at::einsum("ts,bsgd->btgd", {weights, v});
    Tensor& mean = state["mean"];  // (B, G, D)
    if (mean.defined()) means = means + at::pow(methods::kToyKeep, steps + 1).view({T, 1, 1}) * mean.unsqueeze(1);
    mean = means.select(1, T - 1);
    return means.repeat_interleave(R, 2).to(block.heads.q.scalar_type());
  }

  Tensor Output(const LayerBlock& block, const Tensor& local, const Tensor& reads) const override {
    return OutProjection(block.parameters, local + Gate(block).to(local.scalar_type()) * reads);
  }

  LayerMetrics Metrics(const LayerBlock& block, const MethodState& state) const override {
    return {.learned = {{"gate", Values(Gate(block))}}, .memory_norm = RootMeanSquareNorm(state.at("mean"))};
  }

 private:
  static Tensor Gate(const LayerBlock& block) {
    return block.parameters.Get("gate").sigmoid().unsqueeze(-1);
  }  // (H, 1)
};

// Adds both halves when it is first called.
inline void AddToyTrainMethod() {
  static const ToyTrainMethod train_half;
  static const bool added = [] {
    AddTrainMethod(*methods::FindMethod(methods::AddToyMethod()), train_half);
    return true;
  }();
  static_cast<void>(added);
}

}  // namespace tensorcache::train
