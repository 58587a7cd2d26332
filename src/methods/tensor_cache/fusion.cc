// output = W_o local + gate W_tc reads. A scalar gate is part of the matrix; one per token, or per token and channel, scales the
// reads.
#include "core/scalar_math.h"
#include "methods/head.h"
#include "methods/rows_math.h"
#include "methods/tensor_cache/tensor_cache.h"

namespace tensorcache::methods {
namespace {

class TensorCacheFusion : public Fusion {
 public:
  TensorCacheFusion(MemoryGate gate, LearnedTensor output, std::vector<float> gate_logit,
                    std::vector<float> gate_weight)
      : gate_(gate),
        output_(std::move(output)),
        gate_logit_(std::move(gate_logit)),
        gate_weight_(std::move(gate_weight)) {}

  bool has_reads() const override { return true; }
  std::vector<OutputMatrix> matrices() const override {
    return {{.tensor = output_, .factor = gate_ == MemoryGate::kScalar ? Sigmoid(gate_logit_[0]) : 1}};
  }
  void Apply(const FusionRows& rows) const override {
    for (int64_t t = 0; t < rows.rows && gate_ != MemoryGate::kScalar; ++t) {
      float* reads = rows.local + t * rows.stride + rows.width;
      if (gate_ == MemoryGate::kPerToken) {
        const float gate = Sigmoid(Dot(rows.x + t * rows.E, gate_weight_.data(), rows.E) + gate_logit_[0]);
        for (int64_t i = 0; i < rows.width; ++i) reads[i] *= gate;
      } else {
        const float* input = rows.input + t * rows.width;
        for (int64_t i = 0; i < rows.width; ++i) reads[i] *= Sigmoid(input[i] + gate_logit_[static_cast<size_t>(i)]);
      }
    }
  }

 private:
  MemoryGate gate_;
  LearnedTensor output_;            // W_tc
  std::vector<float> gate_logit_;   // (1): g, or b; (H D) of a gate per channel
  std::vector<float> gate_weight_;  // w (E) of a gate per token
};

}  // namespace

Result<std::unique_ptr<const Fusion>> MakeTensorCacheFusion(const Method& method, const LayerPlace& place,
                                                            const LearnedNumbers& numbers) {
  TC_ASSIGN_OR_RETURN(const std::vector<double> gate, NumbersOf(TensorOf(method, place, "gate"), numbers));
  std::vector<double> weight;
  if (place.cache.tensor_cache.read.gate == MemoryGate::kPerToken) {
    TC_ASSIGN_OR_RETURN(weight, NumbersOf(TensorOf(method, place, "gate_proj.weight"), numbers));
  }
  return std::unique_ptr<const Fusion>(std::make_unique<TensorCacheFusion>(
      place.cache.tensor_cache.read.gate, TensorOf(method, place, "o_proj.weight"),
      std::vector<float>(gate.begin(), gate.end()), std::vector<float>(weight.begin(), weight.end())));
}

}  // namespace tensorcache::methods
