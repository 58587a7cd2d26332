#include <gtest/gtest.h>

#include <vector>

#include "train/ops/gradcheck_testing.h"
#include "train/ops/norm.h"
#include "train/ops/op_testing.h"

namespace tensorcache::train {
namespace {

constexpr double kEps = 1e-5;

// Inputs x, weight, and bias for LayerNorm.
Op LayerNormOp() {
  return [](const std::vector<Tensor>& in, Backend backend) { return LayerNorm(in[0], in[1], in[2], kEps, backend); };
}
Op RmsNormOp() {
  return [](const std::vector<Tensor>& in, Backend backend) { return RmsNorm(in[0], in[1], kEps, backend); };
}

// The largest terms of dx = r (g - mean g - h mean(g h)) with g = dy weight: they cancel in narrow rows.
double InputGradientMagnitude(bool centred, const Tensor& x, const Tensor& weight, const Tensor& dy) {
  Tensor wide = x.to(at::kDouble);
  if (centred) wide = wide - wide.mean(-1, true);
  const Tensor r = (wide.square().mean(-1, true) + kEps).rsqrt();
  return (r * (1 + (wide * r).abs().amax(-1, true)) * (dy * weight).abs().amax(-1, true)).max().item<double>();
}

void ExpectMatch(bool centred, const std::vector<Tensor>& inputs) {
  const Op op = centred ? LayerNormOp() : RmsNormOp();
  const Tensor projection = at::randn_like(inputs[0]);
  const OpRun expected = RunOp(op, inputs, projection, Backend::kComposite, at::kDouble);
  const PoisonEmpty poison;
  const OpRun actual = RunOp(op, inputs, projection, Backend::kFused, at::kFloat);
  const OpRun again = RunOp(op, inputs, projection, Backend::kFused, at::kFloat);
  const int64_t E = inputs[0].size(-1), rows = inputs[0].numel() / E;
  ASSERT_EQ(actual.output.sizes(), inputs[0].sizes());
  EXPECT_TRUE(at::equal(actual.output, again.output));
  if (rows > 0) {
    const double offset = inputs.size() > 2 && inputs[2].defined() ? inputs[2].abs().max().item<double>() : 0;
    const double h = expected.output.abs().max().item<double>() + offset;
    EXPECT_TRUE(Close(actual.output, expected.output, SumRoundings(E), h));
    const double dx = InputGradientMagnitude(centred, inputs[0], inputs[1], projection);
    EXPECT_TRUE(Close(actual.gradients[0], expected.gradients[0], SumRoundings(E), dx));
  }
  // Of dweight = sum of dy h over rows. h is at most sqrt(E), and exact to a few roundings of its own row.
  for (size_t i = 1; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    const double magnitude = 4 + expected.gradients[i].abs().max().item<double>();
    EXPECT_TRUE(Close(actual.gradients[i], expected.gradients[i], SumRoundings(rows) + SumRoundings(E), magnitude))
        << i;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    EXPECT_TRUE(at::equal(actual.gradients[i], again.gradients[i])) << i;
  }
}

TEST(NormOp, FusedMatchesComposite) {
  at::manual_seed(1);
  const ThreadCount two(2);
  using Sizes = std::vector<int64_t>;
  for (const Sizes& sizes : {Sizes{1}, {7}, {1, 1}, {1, 37}, {5, 16}, {2, 3, 128}, {31, 33}, {700, 50}, {3, 0, 8}}) {
    SCOPED_TRACE(::testing::Message() << "sizes " << at::IntArrayRef(sizes));
    const Tensor x = at::randn(sizes) * 3 + 1, weight = at::randn({sizes.back()}), bias = at::randn({sizes.back()});
    ExpectMatch(true, {x, weight, bias});
    ExpectMatch(true, {x, weight, Tensor()});
    ExpectMatch(false, {x, weight});
  }
}

TEST(NormOp, GradientsAlone) {
  at::manual_seed(2);
  const ThreadCount one(1);
  const std::vector<Tensor> inputs = {at::randn({50, 20}), at::randn({20}), at::randn({20})};
  ExpectEachGradientAlone(LayerNormOp(), inputs);
  ExpectEachGradientAlone(RmsNormOp(), {inputs[0], inputs[1]});
}

TEST(NormOp, StridedInputsAndGradients) {
  at::manual_seed(3);
  const auto transposed = [](const Op& op) {
    return [=](const std::vector<Tensor>& in, Backend backend) { return op(in, backend).transpose(0, 1); };
  };
  const Tensor x = at::randn({9, 20, 4}).transpose(0, 1).transpose(1, 2), weight = at::randn({9, 2}).select(1, 0);
  ExpectFusedMatchesComposite(transposed(LayerNormOp()), {x, weight, at::randn({9})}, 80);
  ExpectFusedMatchesComposite(transposed(RmsNormOp()), {x, weight}, 80);
}

// The sums over rows are cut by the shape, not by the threads.
TEST(NormOp, SameBitsWithAnyNumberOfThreads) {
  at::manual_seed(4);
  const std::vector<Tensor> inputs = {at::randn({5000, 48}), at::randn({48}), at::randn({48})};
  const Tensor projection = at::randn_like(inputs[0]);
  const auto run = [&](int threads) {
    const ThreadCount count(threads);
    return RunOp(LayerNormOp(), inputs, projection, Backend::kFused, at::kFloat);
  };
  const OpRun expected = run(1), actual = run(2);
  EXPECT_TRUE(at::equal(actual.output, expected.output));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(actual.gradients[i], expected.gradients[i])) << i;
}

TEST(NormOp, CompositeIsTheLibrarysLayerNorm) {
  at::manual_seed(5);
  const Tensor x = at::randn({6, 21}, at::kDouble), weight = at::randn({21}, at::kDouble),
               bias = at::randn({21}, at::kDouble);
  EXPECT_TRUE(
      at::allclose(LayerNorm(x, weight, bias, kEps), at::layer_norm(x, {21}, weight, bias, kEps), 1e-12, 1e-12));
}

TEST(NormOp, CompositeGradcheck) {
  at::manual_seed(6);
  const ThreadCount one(1);
  const std::vector<Tensor> inputs = {at::randn({3, 7}, at::kDouble), at::randn({7}, at::kDouble),
                                      at::randn({7}, at::kDouble)};
  const auto layer = [](const std::vector<Tensor>& in) { return std::vector{LayerNorm(in[0], in[1], in[2], kEps)}; };
  const auto rms = [](const std::vector<Tensor>& in) { return std::vector{RmsNorm(in[0], in[1], kEps)}; };
  EXPECT_TRUE(Gradcheck(layer, inputs));
  EXPECT_TRUE(Gradcheck(layer, {inputs[0], inputs[1], Tensor()}));
  EXPECT_TRUE(Gradcheck(rms, {inputs[0], inputs[1]}));
}

// Statistics of bfloat16 rows are taken in float32: rows far from zero keep their spread.
TEST(NormOp, Bfloat16) {
  at::manual_seed(7);
  const ThreadCount one(1);
  const std::vector<Tensor> inputs = {at::randn({30, 64}) + 8, at::randn({64}), at::randn({64})};
  ExpectBfloat16Close(LayerNormOp(), inputs, 2);
  ExpectBfloat16Close(RmsNormOp(), {inputs[0], inputs[1]}, 2);
}

TEST(NormOp, RefusesWrongSizes) {
  const Tensor x = at::randn({3, 8}), weight = at::randn({7});
  EXPECT_THROW(RmsNorm(x, weight, kEps), c10::Error);
  EXPECT_THROW(LayerNorm(x, weight, Tensor(), kEps), c10::Error);
  EXPECT_THROW(LayerNorm(x, at::randn({8}), weight, kEps), c10::Error);
  ExpectNoSecondDerivative(RmsNormOp(), {x, at::randn({8})});
  ExpectNoSecondDerivative(LayerNormOp(), {x, at::randn({8}), Tensor()});
}

}  // namespace
}  // namespace tensorcache::train
