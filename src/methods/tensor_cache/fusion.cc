// output = W_o local + gate W_tc reads. A scalar gate is part of the matrix; one per token scales the reads.
#include "core/scalar_math.h"
#include "methods/head.h"
#include "methods/rows_math.h"
#include "methods/tensor_cache/tensor_cache.h"

namespace tensorcache::methods {
namespace {

class TensorCacheFusion : public Fusion {
 public:
  TensorCacheFusion(LearnedTensor output, float gate_logit, std::vector<float> gate_weight)
      : output_(std::move(output)), gate_logit_(gate_logit), gate_weight_(std::move(gate_weight)) {}

  bool has_reads() const override { return true; }
  std::vector<OutputMatrix> matrices() const override {
    return {{.tensor = output_, .factor = gate_weight_.empty() ? Sigmoid(gate_logit_) : 1}};
  }
  void Apply(const FusionRows& rows) const override {
    if (gate_weight_.empty()) return;
    for (int64_t t = 0; t < rows.rows; ++t) {
      const float gate = Sigmoid(Dot(rows.x + t * rows.E, gate_weight_.data(), rows.E) + gate_logit_);
      float* reads = rows.local + t * rows.stride + rows.width;
      for (int64_t i = 0; i < rows.width; ++i) reads[i] *= gate;
    }
  }

 private:
  LearnedTensor output_;            // W_tc
  float gate_logit_;                // g, or b
  std::vector<float> gate_weight_;  // w (E); empty: a scalar gate
};

}  // namespace

Result<std::unique_ptr<const Fusion>> MakeTensorCacheFusion(const Method& method, const LayerPlace& place,
                                                            const LearnedNumbers& numbers) {
  TC_ASSIGN_OR_RETURN(const std::vector<double> gate, NumbersOf(TensorOf(method, place, "gate"), numbers));
  std::vector<double> weight;
  if (place.cache.tensor_cache.read.gate == MemoryGate::kPerToken) {
    TC_ASSIGN_OR_RETURN(weight, NumbersOf(TensorOf(method, place, "gate_proj.weight"), numbers));
  }
  return std::unique_ptr<const Fusion>(
      std::make_unique<TensorCacheFusion>(TensorOf(method, place, "o_proj.weight"), static_cast<float>(gate[0]),
                                          std::vector<float>(weight.begin(), weight.end())));
}

}  // namespace tensorcache::methods
