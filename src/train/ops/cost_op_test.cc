#include <gtest/gtest.h>

#include "train/ops/cost.h"

namespace tensorcache::train {
namespace {

TEST(WithCost, AddsTheGradientOfAWeightedMean) {
  const Tensor projection = at::randn({3, 5, 7}, at::kDouble);
  Tensor x = at::randn({3, 5, 7}, at::kDouble).requires_grad_();
  Tensor y = x.detach().clone().requires_grad_();
  const Tensor out = WithCost(x, 0.3);
  EXPECT_TRUE(at::equal(out, x));
  (out * projection).sum().backward();
  ((y * projection).sum() + 0.3 * y.mean()).backward();
  EXPECT_TRUE(at::allclose(x.grad(), y.grad(), 1e-12, 1e-14));
}

TEST(WithCost, IsNothingWithoutGradientsOrWeight) {
  const Tensor plain = at::randn({2}), learned = at::randn({2}).requires_grad_();
  EXPECT_TRUE(WithCost(plain, 1).is_same(plain));
  EXPECT_TRUE(WithCost(learned, 0).is_same(learned));
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(WithCost(learned, 1).is_same(learned));
}

}  // namespace
}  // namespace tensorcache::train
