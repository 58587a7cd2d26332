#include <gtest/gtest.h>

#include <vector>

#include "tensorcache/kernels/read_norm.h"
#include "train/ops/gradcheck_testing.h"
#include "train/ops/op_testing.h"
#include "train/ops/read_norm.h"

namespace tensorcache::train {
namespace {

// Inputs x, gamma, and c or none.
Op ReadNormOp() {
  return [](const std::vector<Tensor>& in, Backend backend) { return ReadNorm(in[0], in[1], in[2], backend); };
}

struct Shape {
  int64_t B, T, H, D;
};

std::vector<Tensor> Inputs(const Shape& s, bool soft, at::ScalarType dtype = at::kFloat) {
  return {at::randn({s.B, s.T, s.H, s.D}, dtype), at::randn({s.H, s.D}, dtype),
          soft ? at::randn({s.H}, dtype) : Tensor()};
}

// What the gradients sum up, in float64: each of h = r x, g = gamma d_y and their products is exact to a few roundings
// of its own row.
struct Magnitudes {
  double d_x = 0, d_gamma = 0, d_c = 0;
};

Magnitudes MagnitudesOf(const std::vector<Tensor>& inputs, const Tensor& d_y) {
  const Tensor x = inputs[0].to(at::kDouble), dy = d_y.to(at::kDouble), g = (dy * inputs[1]).abs();
  const Tensor f = inputs[2].defined() ? inputs[2].to(at::kDouble).square().unsqueeze(-1)
                                       : at::full({}, kReadNormFloor, at::kDouble);
  const Tensor r = (x.square().mean(-1, true) + f).rsqrt(), h = (x * r).abs();
  Magnitudes magnitudes{.d_x = (r * (g + h * (g * h).mean(-1, true))).max().item<double>(),
                        .d_gamma = (dy.abs() * h).sum({0, 1}).max().item<double>()};
  if (inputs[2].defined()) {
    const Tensor terms = r.square().squeeze(-1) * (g * h).sum(-1) * inputs[2].abs();
    magnitudes.d_c = terms.sum({0, 1}).max().item<double>();
  }
  return magnitudes;
}

void ExpectMatch(const std::vector<Tensor>& inputs) {
  const Tensor projection = at::randn(inputs[0].sizes());
  const OpRun expected = RunOp(ReadNormOp(), inputs, projection, Backend::kComposite, at::kDouble);
  const PoisonEmpty poison;
  const OpRun actual = RunOp(ReadNormOp(), inputs, projection, Backend::kFused, at::kFloat);
  ASSERT_EQ(actual.output.sizes(), inputs[0].sizes());
  EXPECT_TRUE(actual.output.is_contiguous());
  const int64_t D = inputs[0].size(3), rows = inputs[0].size(0) * inputs[0].size(1);
  if (inputs[0].numel() > 0) {
    const Magnitudes magnitudes = MagnitudesOf(inputs, projection);
    EXPECT_TRUE(Close(actual.output, expected.output, SumRoundings(D)));
    EXPECT_TRUE(Close(actual.gradients[0], expected.gradients[0], SumRoundings(D), magnitudes.d_x));
    const double sums = SumRoundings(rows) + SumRoundings(D);
    EXPECT_TRUE(Close(actual.gradients[1], expected.gradients[1], sums, magnitudes.d_gamma));
    if (inputs[2].defined()) {
      EXPECT_TRUE(Close(actual.gradients[2], expected.gradients[2], sums, magnitudes.d_c));
    }
  } else {
    EXPECT_TRUE(at::equal(actual.gradients[1], at::zeros_like(inputs[1])));
    if (inputs[2].defined()) {
      EXPECT_TRUE(at::equal(actual.gradients[2], at::zeros_like(inputs[2])));
    }
  }
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(ReadNormOp()(inputs, Backend::kFused), actual.output)) << "without gradients";
}

TEST(ReadNormOp, FusedMatchesComposite) {
  at::manual_seed(1);
  const ThreadCount two(2);
  for (const Shape& s : {Shape{1, 1, 1, 1},
                         {2, 3, 1, 3},
                         {1, 7, 3, 7},
                         {3, 1, 5, 33},
                         {2, 50, 17, 64},
                         {1, 130, 2, 128},
                         {2, 0, 3, 4},
                         {0, 5, 3, 4}}) {
    for (const bool soft : {false, true}) {
      SCOPED_TRACE(::testing::Message() << s.B << " " << s.T << " " << s.H << " " << s.D << " soft " << soft);
      ExpectMatch(Inputs(s, soft));
    }
  }
  EXPECT_EQ(ReadNorm(at::empty({2, 3, 0, 4}), at::empty({0, 4}), Tensor(), Backend::kFused).numel(), 0);
}

TEST(ReadNormOp, GradientsAlone) {
  at::manual_seed(2);
  for (const bool soft : {false, true}) ExpectEachGradientAlone(ReadNormOp(), Inputs({2, 5, 3, 20}, soft));
}

// Views by heads, of a part, with rows that are not contiguous; parameters that are columns; a gradient that is a view
// too.
TEST(ReadNormOp, StridedInputsAndGradients) {
  at::manual_seed(3);
  const Tensor gamma = at::randn({16, 3}).t(), c = at::randn({3, 2}).select(1, 0);
  const Op transposed = [](const std::vector<Tensor>& in, Backend backend) {
    return ReadNorm(in[0], in[1], in[2], backend).transpose(0, 2).transpose(1, 3);
  };
  for (const Tensor& x : {at::randn({2, 3, 9, 16}).transpose(1, 2), at::randn({2, 9, 3, 20}).narrow(3, 2, 16),
                          at::randn({2, 9, 16, 3}).transpose(2, 3)}) {
    ExpectMatch({x, gamma, c});
    const Tensor y = ReadNorm(x, gamma, c, Backend::kFused);
    EXPECT_TRUE(at::equal(y, ReadNorm(x.contiguous(), gamma.contiguous(), c.contiguous(), Backend::kFused)));
    ExpectFusedMatchesComposite(transposed, {x, gamma, c}, 18 + 16);
    const Tensor leaf = x.detach().requires_grad_(true);
    const auto ones = torch::autograd::grad({ReadNorm(leaf, gamma, c, Backend::kFused).sum()}, {leaf});  // expanded
    const auto same = torch::autograd::grad({ReadNorm(leaf, gamma, c, Backend::kFused)}, {leaf}, {at::ones_like(y)});
    EXPECT_TRUE(at::equal(ones[0], same[0]));
  }
}

TEST(ReadNormOp, SameBitsWithAnyNumberOfThreads) {
  at::manual_seed(4);
  const std::vector<Tensor> inputs = Inputs({3, 400, 5, 48}, true);
  const Tensor projection = at::randn_like(inputs[0]);
  const auto run = [&](int threads) {
    const ThreadCount count(threads);
    return RunOp(ReadNormOp(), inputs, projection, Backend::kFused, at::kFloat);
  };
  const OpRun expected = run(1), actual = run(2);
  EXPECT_TRUE(at::equal(actual.output, expected.output));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(actual.gradients[i], expected.gradients[i])) << i;
}

// Both versions, at reads of 0, which every text starts with: 0, with the gradient r gamma d_y.
TEST(ReadNormOp, ReadsOfZero) {
  at::manual_seed(5);
  const Tensor x = at::zeros({1, 2, 3, 5}), gamma = at::randn({3, 5}), projection = at::randn({1, 2, 3, 5});
  const Tensor c = at::full({3}, -0.25);
  for (const Tensor& floor : {Tensor(), c, at::zeros({3})}) {
    const double r = !floor.defined() ? 1000 : floor[0].item<double>() == 0 ? 0 : 4;
    for (const Backend backend : {Backend::kFused, Backend::kComposite}) {
      const OpRun run = RunOp(ReadNormOp(), {x, gamma, floor}, projection, backend, at::kFloat);
      EXPECT_TRUE(at::equal(run.output, x));
      EXPECT_TRUE(Close(run.gradients[0], r * gamma * projection, 4));
      EXPECT_TRUE(at::equal(run.gradients[1], at::zeros_like(gamma)));
      if (floor.defined()) {
        EXPECT_TRUE(at::equal(run.gradients[2], at::zeros({3})));
      }
    }
  }
}

TEST(ReadNormOp, CompositeGradcheck) {
  at::manual_seed(6);
  const ThreadCount one(1);
  const auto f = [](const std::vector<Tensor>& in) { return std::vector{ReadNorm(in[0], in[1], in[2])}; };
  for (const bool soft : {false, true}) EXPECT_TRUE(Gradcheck(f, Inputs({2, 3, 2, 7}, soft, at::kDouble)));
}

// The parameters stay float32, and so do their gradients.
TEST(ReadNormOp, Bfloat16) {
  at::manual_seed(7);
  const ThreadCount one(1);
  for (const bool soft : {false, true}) {
    const std::vector<Tensor> inputs = Inputs({2, 15, 3, 64}, soft);
    ExpectBfloat16Close(ReadNormOp(), inputs, 2);
    const Tensor x = inputs[0].to(at::kBFloat16), gamma = inputs[1].detach().requires_grad_(true);
    const Tensor y = ReadNorm(x, gamma, inputs[2]);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    EXPECT_EQ(torch::autograd::grad({y.sum()}, {gamma})[0].scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(y, ReadNorm(x.to(at::kFloat), inputs[1], inputs[2], Backend::kComposite).to(at::kBFloat16)));
  }
}

TEST(ReadNormOp, RefusesWrongSizes) {
  const Tensor x = at::randn({2, 3, 4, 8}), gamma = at::randn({4, 8});
  EXPECT_THROW(ReadNorm(x[0], gamma, Tensor()), c10::Error);
  EXPECT_THROW(ReadNorm(x, at::randn({8}), Tensor()), c10::Error);
  EXPECT_THROW(ReadNorm(x, at::randn({8, 4}), Tensor()), c10::Error);
  EXPECT_THROW(ReadNorm(x, gamma, at::randn({8})), c10::Error);
  EXPECT_THROW(ReadNorm(at::randn({2, 3, 4, 0}), at::randn({4, 0}), Tensor()), c10::Error);
  ExpectNoSecondDerivative(ReadNormOp(), {x, gamma, at::randn({4})});
}

}  // namespace
}  // namespace tensorcache::train
