// Gradients of an op against finite differences, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "train/torch.h"

namespace tensorcache::train {

using TensorFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

// sum over outputs of <output, projection>, and of the absolute values of its terms.
struct Projected {
  Tensor value;
  double magnitude = 0;
};

inline Projected Project(const std::vector<Tensor>& outputs, const std::vector<Tensor>& projections) {
  Projected sum{.value = at::zeros({}, at::kDouble)};
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Tensor terms = outputs[i].to(at::kDouble) * projections[i];
    sum.value = sum.value + terms.sum();
    sum.magnitude += terms.detach().abs().sum().item<double>();
  }
  return sum;
}

// Whether autograd gives the gradient of a random projection of f's outputs that central differences give, for each
// element of each double tensor among `inputs` (others, undefined ones too, are passed on as they are). An input that
// nothing depends on fails too: it would not notice a missing gradient. f runs twice for each element: keep tensors
// small. With step h the differences err by h^2/6 times the third derivative and by eps/h times what is summed: 2e-11
// of both, at h = 1e-5, for functions whose derivatives are of the order of their values. The tolerance leaves 500
// times that.
inline ::testing::AssertionResult Gradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs) {
  constexpr double kStep = 1e-5, kTolerance = 1e-8;
  std::vector<Tensor> leaves, wanted;
  for (const Tensor& input : inputs) {
    const bool differentiate = input.defined() && input.scalar_type() == at::kDouble;
    leaves.push_back(differentiate ? input.detach().clone().contiguous().requires_grad_(true) : input);
    if (differentiate) wanted.push_back(leaves.back());
  }
  const std::vector<Tensor> outputs = f(leaves);
  std::vector<Tensor> projections;
  for (const Tensor& output : outputs) projections.push_back(at::randn(output.sizes(), at::kDouble));
  const Projected base = Project(outputs, projections);
  const auto gradients = torch::autograd::grad({base.value}, wanted, {}, /*retain_graph=*/false, /*create_graph=*/false,
                                               /*allow_unused=*/true);

  const at::NoGradGuard no_grad;
  const auto value = [&] { return Project(f(leaves), projections).value.item<double>(); };
  size_t next = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!leaves[i].defined() || leaves[i].scalar_type() != at::kDouble) continue;
    const Tensor& gradient = gradients[next++];
    if (!gradient.defined()) return ::testing::AssertionFailure() << "input " << i << " got no gradient";
    Tensor numeric = at::empty_like(leaves[i]);
    double* x = leaves[i].data_ptr<double>();
    for (int64_t j = 0; j < leaves[i].numel(); ++j) {
      const double saved = x[j];
      x[j] = saved + kStep;
      const double above = value();
      x[j] = saved - kStep;
      numeric.data_ptr<double>()[j] = (above - value()) / (2 * kStep);
      x[j] = saved;
    }
    if (leaves[i].numel() == 0) continue;
    const double largest = numeric.abs().max().item<double>();
    const double error = (gradient - numeric).abs().max().item<double>();
    const double tolerance = kTolerance * (largest + base.magnitude);
    if (largest <= tolerance) return ::testing::AssertionFailure() << "nothing depends on input " << i;
    if (!(error <= tolerance)) {
      return ::testing::AssertionFailure() << "input " << i << ": gradients differ by " << error << ", at most "
                                           << tolerance << " is rounding; the largest is " << largest;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace tensorcache::train
