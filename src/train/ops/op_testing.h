// Fused ops against their composite in float64, for tests.
#pragma once

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "train/ops/backend.h"

namespace tensorcache::train {

// While it lives, at::empty gives NaN: an output that is not overwritten shows.
class PoisonEmpty {
 public:
  PoisonEmpty() { Set(true); }
  ~PoisonEmpty() { Set(false); }
  PoisonEmpty(const PoisonEmpty&) = delete;
  PoisonEmpty& operator=(const PoisonEmpty&) = delete;

 private:
  static void Set(bool on) {
    at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(on);
  }
};

// While it lives, torch uses this many threads: one for many tiny operations, two to see that ranges are shared out right.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
  ~ThreadCount() { at::set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

// One output from inputs of which some may be undefined.
using Op = std::function<Tensor(const std::vector<Tensor>& inputs, Backend backend)>;

struct OpRun {
  Tensor output;
  std::vector<Tensor> gradients;  // of each defined floating-point input, undefined otherwise
};

// The op and the gradients of <output, projection>.
inline OpRun RunOp(const Op& op, const std::vector<Tensor>& inputs, const Tensor& projection, Backend backend,
                   at::ScalarType dtype) {
  std::vector<Tensor> leaves, wanted;
  for (const Tensor& input : inputs) {
    const bool differentiate = input.defined() && input.is_floating_point();
    leaves.push_back(differentiate ? input.detach().to(dtype).requires_grad_(true) : input);
    if (differentiate) wanted.push_back(leaves.back());
  }
  OpRun run;
  run.output = op(leaves, backend);
  const auto gradients = torch::autograd::grad({run.output}, wanted, {projection.to(run.output.scalar_type())});
  size_t next = 0;
  for (const Tensor& leaf : leaves) {
    run.gradients.push_back(leaf.defined() && leaf.is_floating_point() ? gradients[next++] : Tensor());
  }
  run.output = run.output.detach();
  return run;
}

// Errors against `roundings` float32 roundings of numbers as large as `magnitude`; by default the largest expected, which
// with random data stands for the norms of what was summed. Sums of n terms make about sqrt(n) roundings: errors are random.
inline ::testing::AssertionResult Close(const Tensor& actual, const Tensor& expected, double roundings,
                                        double magnitude = 0) {
  if (actual.sizes() != expected.sizes()) {
    return ::testing::AssertionFailure() << "size " << actual.sizes() << " instead of " << expected.sizes();
  }
  if (actual.numel() == 0) return ::testing::AssertionSuccess();
  if (magnitude == 0) magnitude = expected.abs().max().item<double>();
  const double error = (actual.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
  const double tolerance = roundings * std::numeric_limits<float>::epsilon() * magnitude;
  if (error <= tolerance) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "off by " << error << " > " << roundings << " eps * " << magnitude;
}

inline double SumRoundings(int64_t terms) { return 4 + std::sqrt(static_cast<double>(terms)); }

// Fused in float32 on poisoned memory against composite in float64, output and all gradients, and against a second run of
// itself, bit by bit. `terms` is the length of the longest sum.
inline void ExpectFusedMatchesComposite(const Op& op, const std::vector<Tensor>& inputs, int64_t terms) {
  const Tensor projection = at::randn_like(op(inputs, Backend::kComposite));
  const OpRun expected = RunOp(op, inputs, projection, Backend::kComposite, at::kDouble);
  const PoisonEmpty poison;
  const OpRun actual = RunOp(op, inputs, projection, Backend::kFused, at::kFloat);
  const OpRun again = RunOp(op, inputs, projection, Backend::kFused, at::kFloat);
  EXPECT_EQ(actual.output.scalar_type(), at::kFloat);
  EXPECT_TRUE(Close(actual.output, expected.output, SumRoundings(terms)));
  EXPECT_TRUE(at::equal(actual.output, again.output));
  for (size_t i = 0; i < inputs.size(); ++i) {
    SCOPED_TRACE("gradient of input " + std::to_string(i));
    ASSERT_EQ(actual.gradients[i].defined(), expected.gradients[i].defined());
    if (!actual.gradients[i].defined()) continue;
    EXPECT_TRUE(Close(actual.gradients[i], expected.gradients[i], SumRoundings(terms)));
    EXPECT_TRUE(at::equal(actual.gradients[i], again.gradients[i]));
  }
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(op(inputs, Backend::kFused), actual.output)) << "without gradients";
}

// A gradient asked for alone is that among all.
inline void ExpectEachGradientAlone(const Op& op, const std::vector<Tensor>& inputs) {
  const Tensor projection = at::randn_like(op(inputs, Backend::kComposite));
  const OpRun all = RunOp(op, inputs, projection, Backend::kFused, at::kFloat);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!all.gradients[i].defined()) continue;
    SCOPED_TRACE("gradient of input " + std::to_string(i) + " alone");
    std::vector<Tensor> one = inputs;
    one[i] = inputs[i].detach().clone().requires_grad_(true);
    const auto gradient = torch::autograd::grad({op(one, Backend::kFused)}, {one[i]}, {projection});
    EXPECT_TRUE(at::equal(gradient[0], all.gradients[i]));
  }
}

// The gradient of the gradient is refused rather than wrong.
inline void ExpectNoSecondDerivative(const Op& op, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> leaves = inputs;
  leaves[0] = inputs[0].detach().clone().requires_grad_(true);
  EXPECT_THROW(torch::autograd::grad({op(leaves, Backend::kFused).sum()}, {leaves[0]}, {}, /*retain_graph=*/true,
                                     /*create_graph=*/true),
               c10::Error);
}

// bfloat16 in, bfloat16 (or float32) out, as far from float64 as its rounding makes it: each of about 10 intermediate
// results is rounded to 8 bits.
inline void ExpectBfloat16Close(const Op& op, const std::vector<Tensor>& inputs, double roundings = 10) {
  std::vector<Tensor> low = inputs, wide = inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].is_floating_point()) continue;
    low[i] = inputs[i].to(at::kBFloat16);
    wide[i] = low[i].to(at::kDouble);
  }
  const Tensor projection = at::randn_like(op(inputs, Backend::kComposite)).to(at::kBFloat16);
  const OpRun expected = RunOp(op, wide, projection, Backend::kComposite, at::kDouble);
  const OpRun actual = RunOp(op, low, projection, Backend::kAuto, at::kBFloat16);
  const double scale = 65536;  // eps of bfloat16 over that of float32
  EXPECT_TRUE(Close(actual.output, expected.output, roundings * scale));
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (actual.gradients[i].defined()) {
      EXPECT_TRUE(Close(actual.gradients[i], expected.gradients[i], roundings * scale)) << "gradient of input " << i;
    }
  }
}

}  // namespace tensorcache::train
