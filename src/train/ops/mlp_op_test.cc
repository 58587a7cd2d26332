#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "train/ops/gradcheck_testing.h"
#include "train/ops/mlp.h"
#include "train/ops/op_testing.h"

namespace tensorcache::train {
namespace {

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh};

// Inputs x, in_weight, in_bias, down_weight, down_bias.
Op MlpOp(Activation activation, bool gated) {
  return [=](const std::vector<Tensor>& in, Backend backend) {
    return Mlp({.x = in[0],
                .in_weight = in[1],
                .in_bias = in[2],
                .down_weight = in[3],
                .down_bias = in[4],
                .activation = activation,
                .gated = gated},
               backend);
  };
}

std::vector<Tensor> Inputs(at::IntArrayRef sizes, int64_t F, bool gated, at::ScalarType dtype = at::kFloat) {
  const int64_t E = sizes.back(), projections = gated ? 2 * F : F;
  return {at::randn(sizes, dtype), at::randn({projections, E}, dtype) / std::sqrt(static_cast<double>(E)),
          at::randn({projections}, dtype), at::randn({E, F}, dtype), at::randn({E}, dtype)};
}

TEST(MlpOp, FusedMatchesComposite) {
  at::manual_seed(1);
  const ThreadCount one(1);
  struct Case {
    std::vector<int64_t> sizes;
    int64_t F;
  };
  // Of one hidden unit all gradients are multiples of one slope, which is exact relative to 1, not to itself.
  for (const Case& c : {Case{{6}, 3}, {{1, 5}, 3}, {{2, 7, 16}, 37}, {{65, 33}, 100}, {{0, 4}, 8}}) {
    for (const Activation activation : kActivations) {
      for (const bool gated : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "x " << at::IntArrayRef(c.sizes) << " F " << c.F << " activation "
                                          << static_cast<int>(activation) << " gated " << gated);
        const std::vector<Tensor> inputs = Inputs(c.sizes, c.F, gated);
        const int64_t terms = inputs[0].numel() + 2 * c.F;
        const Op op = MlpOp(activation, gated);
        ExpectFusedMatchesComposite(op, inputs, terms);
        ExpectFusedMatchesComposite(op, {inputs[0], inputs[1], Tensor(), inputs[3], Tensor()}, terms);
        ExpectFusedMatchesComposite(op, {inputs[0], inputs[1], Tensor(), inputs[3], inputs[4]}, terms);
      }
    }
  }
}

// More rows than one block holds, and not a multiple of it.
TEST(MlpOp, ManyBlocks) {
  at::manual_seed(2);
  const ThreadCount two(2);
  for (const bool gated : {false, true}) {
    const std::vector<Tensor> inputs = Inputs({3001, 24}, 600, gated);
    ExpectFusedMatchesComposite(MlpOp(Activation::kSilu, gated), inputs, 3001);
  }
}

TEST(MlpOp, GradientsAlone) {
  at::manual_seed(3);
  const ThreadCount one(1);
  for (const bool gated : {false, true}) {
    const std::vector<Tensor> inputs = Inputs({20, 9}, 21, gated);
    ExpectEachGradientAlone(MlpOp(Activation::kGelu, gated), inputs);
    ExpectEachGradientAlone(MlpOp(Activation::kGelu, gated), {inputs[0], inputs[1], Tensor(), inputs[3], inputs[4]});
  }
}

TEST(MlpOp, StridedInputsAndGradients) {
  at::manual_seed(4);
  const Op op = [](const std::vector<Tensor>& in, Backend backend) {
    return MlpOp(Activation::kSilu, true)({in[0], in[1], Tensor(), in[2], Tensor()}, backend).transpose(0, 2);
  };
  const Tensor x = at::randn({8, 5, 6}).transpose(0, 2), in_weight = at::randn({8, 20}).t(),
               down_weight = at::randn({10, 8}).t();
  ExpectFusedMatchesComposite(op, {x, in_weight, down_weight}, 240);
}

TEST(MlpOp, CompositeGradcheck) {
  at::manual_seed(5);
  const ThreadCount one(1);
  for (const Activation activation : kActivations) {
    for (const bool gated : {false, true}) {
      const auto f = [&](const std::vector<Tensor>& in) {
        return std::vector<Tensor>{MlpOp(activation, gated)(in, Backend::kAuto)};
      };
      EXPECT_TRUE(Gradcheck(f, Inputs({2, 2, 4}, 3, gated, at::kDouble)));
    }
  }
}

TEST(MlpOp, Bfloat16) {
  at::manual_seed(6);
  const ThreadCount one(1);
  for (const bool gated : {false, true})
    ExpectBfloat16Close(MlpOp(Activation::kSilu, gated), Inputs({40, 16}, 32, gated), 4);
}

TEST(MlpOp, RefusesWrongSizes) {
  const std::vector<Tensor> inputs = Inputs({3, 8}, 6, false);
  EXPECT_THROW(MlpOp(Activation::kSilu, true)(inputs, Backend::kAuto), c10::Error);  // half a gate
  EXPECT_THROW(
      MlpOp(Activation::kSilu, false)({at::randn({3, 7}), inputs[1], Tensor(), inputs[3], Tensor()}, Backend::kAuto),
      c10::Error);
  ExpectNoSecondDerivative(MlpOp(Activation::kSilu, false), inputs);
}

}  // namespace
}  // namespace tensorcache::train
