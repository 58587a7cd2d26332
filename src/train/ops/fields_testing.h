// Tests of ops whose inputs are a struct of tensors: the same step for every tensor of it, by name.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <vector>

#include "train/torch.h"

namespace tensorcache::train {

template <class Inputs>
struct InputField {
  const char* name;
  Tensor Inputs::* tensor;
};
template <class Inputs, size_t N>
using InputFields = std::array<InputField<Inputs>, N>;

// In double, but every number a float.
inline Tensor Normal(at::IntArrayRef sizes, double scale = 1) {
  return (at::randn(sizes, at::kFloat) * scale).to(at::kDouble);
}

// Copies that ask for gradients.
template <class Inputs, size_t N>
Inputs LeavesOf(const InputFields<Inputs, N>& fields, Inputs in, at::ScalarType dtype) {
  for (const InputField<Inputs>& field : fields) {
    Tensor& x = in.*field.tensor;
    if (x.defined()) x = x.detach().to(dtype).clone().requires_grad_(true);
  }
  return in;
}

// Of sum <output, d_output>, for every field; what autograd leaves out is zero, and undefined where the input is.
template <class Inputs, size_t N>
std::array<Tensor, N> GradientsOf(const InputFields<Inputs, N>& fields, const Inputs& in,
                                  const std::vector<Tensor>& outputs, std::vector<Tensor> d_outputs) {
  std::vector<Tensor> leaves;
  for (const InputField<Inputs>& field : fields) {
    if ((in.*field.tensor).defined()) leaves.push_back(in.*field.tensor);
  }
  for (size_t i = 0; i < outputs.size(); ++i) d_outputs[i] = d_outputs[i].to(outputs[i].dtype());
  const auto found = torch::autograd::grad(outputs, leaves, d_outputs, /*retain_graph=*/false, /*create_graph=*/false,
                                           /*allow_unused=*/true);
  std::array<Tensor, N> gradients;
  size_t next = 0;
  for (size_t i = 0; i < N; ++i) {
    const Tensor& x = in.*fields[i].tensor;
    if (!x.defined()) continue;
    gradients[i] = found[next].defined() ? found[next] : at::zeros_like(x);
    ++next;
  }
  return gradients;
}

inline double MaxAbs(const Tensor& x) {
  return x.defined() && x.numel() > 0 ? x.detach().abs().max().item<double>() : 0;
}

// Finite, and at most `limit` off. Puts `what` into `seen` if it could be told from zero.
inline void ExpectWithin(const std::string& what, const Tensor& actual, const Tensor& expected, double limit,
                         std::set<std::string>* seen) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (expected.numel() == 0) return;
  EXPECT_TRUE(at::isfinite(actual).all().item<bool>()) << what;
  EXPECT_LE(MaxAbs(actual.to(at::kDouble) - expected.to(at::kDouble)), limit) << what;
  if (seen != nullptr && MaxAbs(expected) > 10 * limit) seen->insert(what);
}

template <class Inputs, size_t N>
void ExpectGradientsWithin(const InputFields<Inputs, N>& fields, const std::array<Tensor, N>& actual,
                           const std::array<Tensor, N>& expected, const std::array<double, N>& magnitudes, double eps,
                           std::set<std::string>* seen) {
  for (size_t i = 0; i < N; ++i) {
    if (actual[i].defined()) ExpectWithin(fields[i].name, actual[i], expected[i], eps * magnitudes[i], seen);
  }
}

// A gradient that was zero in every case was not tested.
template <class Inputs, size_t N>
void ExpectAllSeen(const InputFields<Inputs, N>& fields, const std::set<std::string>& seen) {
  for (const InputField<Inputs>& field : fields)
    EXPECT_TRUE(seen.contains(field.name)) << field.name << " was always zero";
}

}  // namespace tensorcache::train
