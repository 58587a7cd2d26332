#include "train/ops/linear_cross_entropy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "train/ops/gradcheck_testing.h"
#include "train/ops/op_testing.h"

namespace tensorcache::train {
namespace {

// Inputs hidden, weight.
Op LossOf(const Tensor& targets) {
  return [=](const std::vector<Tensor>& in, Backend backend) {
    return LinearCrossEntropy(in[0], in[1], targets, backend);
  };
}

// A share of the targets is -1.
Tensor RandomTargets(int64_t rows, int64_t vocab, double unsupervised) {
  const Tensor targets = at::randint(0, vocab, {rows}, at::kLong);
  return at::where(at::rand({rows}) < unsupervised, at::full({}, -1, at::kLong), targets);
}

TEST(LinearCrossEntropy, FusedMatchesComposite) {
  at::manual_seed(1);
  const ThreadCount two(2);
  struct Case {
    int64_t rows, width, vocab;
  };
  for (const Case& c : {Case{1, 1, 1}, {1, 5, 3}, {7, 16, 33}, {65, 37, 100}, {300, 24, 1000}}) {
    for (const double unsupervised : {0.0, 0.6}) {
      SCOPED_TRACE(::testing::Message() << c.rows << " rows of " << c.width << ", vocabulary " << c.vocab);
      Tensor targets = RandomTargets(c.rows, c.vocab, unsupervised);
      targets[0] = c.vocab - 1;
      const std::vector<Tensor> inputs = {at::randn({c.rows, c.width}), at::randn({c.vocab, c.width})};
      // A loss of a vocabulary of one token is 0, and so are its gradients.
      if (c.vocab > 1) {
        ExpectFusedMatchesComposite(LossOf(targets), inputs, std::max({c.rows, c.width, c.vocab}));
        ExpectEachGradientAlone(LossOf(targets), inputs);
      } else {
        const OpRun run = RunOp(LossOf(targets), inputs, at::ones({}), Backend::kFused, at::kFloat);
        EXPECT_EQ(run.output.item<float>(), 0);
        EXPECT_TRUE(at::equal(run.gradients[0], at::zeros_like(inputs[0])));
        EXPECT_TRUE(at::equal(run.gradients[1], at::zeros_like(inputs[1])));
      }
    }
  }
}

// 64 MB hold 838 rows of this vocabulary.
constexpr int64_t kManyRows = 1001, kLargeVocab = 20011;

TEST(LinearCrossEntropy, TwoChunks) {
  at::manual_seed(2);
  const ThreadCount two(2);
  const std::vector<Tensor> inputs = {at::randn({kManyRows, 16}), at::randn({kLargeVocab, 16})};
  ExpectFusedMatchesComposite(LossOf(RandomTargets(kManyRows, kLargeVocab, 0.02)), inputs, kLargeVocab);
}

TEST(LinearCrossEntropy, NothingSupervised) {
  const std::vector<Tensor> inputs = {at::randn({6, 5}), at::randn({9, 5})};
  for (const Backend backend : {Backend::kFused, Backend::kComposite}) {
    const PoisonEmpty poison;
    const OpRun run = RunOp(LossOf(at::full({6}, -1, at::kLong)), inputs, at::ones({}), backend, at::kFloat);
    EXPECT_EQ(run.output.item<float>(), 0);
    EXPECT_TRUE(at::equal(run.gradients[0], at::zeros_like(inputs[0])));
    EXPECT_TRUE(at::equal(run.gradients[1], at::zeros_like(inputs[1])));
  }
  const Tensor none = LinearCrossEntropy(at::randn({0, 5}), inputs[1], at::empty({0}, at::kLong), Backend::kFused);
  EXPECT_EQ(none.item<float>(), 0);
}

// A row without target gets no gradient even if its hidden state is not finite.
TEST(LinearCrossEntropy, UnsupervisedRowsCannotSpoilTheLoss) {
  at::manual_seed(3);
  const Tensor hidden = at::randn({4, 5}), weight = at::randn({9, 5}),
               targets = at::tensor({3L, -1L, 8L, 0L}, at::kLong);
  Tensor spoilt = hidden.clone();
  spoilt[1] = std::numeric_limits<float>::quiet_NaN();
  const OpRun expected = RunOp(LossOf(targets), {hidden, weight}, at::ones({}), Backend::kFused, at::kFloat);
  const OpRun actual = RunOp(LossOf(targets), {spoilt, weight}, at::ones({}), Backend::kFused, at::kFloat);
  EXPECT_TRUE(at::equal(actual.output, expected.output));
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(actual.gradients[i], expected.gradients[i]));
}

TEST(LinearCrossEntropy, StridedInputs) {
  at::manual_seed(4);
  const Tensor hidden = at::randn({6, 20}).t(), weight = at::randn({6, 31}).t();
  ExpectFusedMatchesComposite(LossOf(at::randint(0, 31, {40}, at::kLong).slice(0, 0, 40, 2)), {hidden, weight}, 31);
}

// Logits beyond the range of exp.
TEST(LinearCrossEntropy, LargeLogits) {
  at::manual_seed(5);
  ExpectFusedMatchesComposite(LossOf(RandomTargets(20, 50, 0)), {at::randn({20, 8}) * 100, at::randn({50, 8})}, 50);
}

TEST(LinearCrossEntropy, GradientIsHandedOverOnce) {
  const Tensor hidden = at::randn({6, 5}).requires_grad_(true), weight = at::randn({9, 5});
  const Tensor loss = LinearCrossEntropy(hidden, weight, RandomTargets(6, 9, 0), Backend::kFused);
  torch::autograd::grad({loss}, {hidden}, {}, /*retain_graph=*/true);
  EXPECT_THROW(torch::autograd::grad({loss}, {hidden}), c10::Error);
  ExpectNoSecondDerivative(LossOf(RandomTargets(6, 9, 0)), {hidden, weight});
}

TEST(LinearCrossEntropy, CompositeGradcheck) {
  at::manual_seed(6);
  const ThreadCount one(1);
  const Tensor targets = at::tensor({2L, -1L, 0L, 6L}, at::kLong);
  const auto f = [&](const std::vector<Tensor>& in) { return std::vector{LinearCrossEntropy(in[0], in[1], targets)}; };
  EXPECT_TRUE(Gradcheck(f, {at::randn({4, 5}, at::kDouble), at::randn({7, 5}, at::kDouble)}));
}

TEST(LinearCrossEntropy, Bfloat16) {
  at::manual_seed(7);
  const ThreadCount one(1);
  const std::vector<Tensor> inputs = {at::randn({30, 16}), at::randn({50, 16}) / 4};
  const Op op = LossOf(RandomTargets(30, 50, 0.3));
  ExpectBfloat16Close(op, inputs, 2);
  EXPECT_EQ(op({inputs[0].to(at::kBFloat16), inputs[1].to(at::kBFloat16)}, Backend::kAuto).scalar_type(), at::kFloat);
}

TEST(LinearCrossEntropy, RefusesTargetsOutOfRange) {
  const Tensor hidden = at::randn({2, 5}), weight = at::randn({9, 5});
  for (const int64_t bad : {int64_t{9}, int64_t{-2}, int64_t{1} << 40}) {
    const Tensor targets = at::tensor({int64_t{3}, bad}, at::kLong);
    EXPECT_THROW(LinearCrossEntropy(hidden, weight, targets, Backend::kFused), c10::Error);
    EXPECT_THROW(LinearCrossEntropy(hidden, weight, targets, Backend::kComposite), c10::Error);
    EXPECT_THROW(TokenNll(hidden, weight, targets), c10::Error);
  }
  EXPECT_THROW(LinearCrossEntropy(hidden, weight, at::zeros({3}, at::kLong)), c10::Error);
  EXPECT_THROW(LinearCrossEntropy(hidden, weight, at::zeros({2}, at::kInt)), c10::Error);
  EXPECT_THROW(LinearCrossEntropy(hidden, at::randn({9, 4}), at::zeros({2}, at::kLong)), c10::Error);
}

TEST(TokenNll, FusedAndCompositeMatchLogSoftmax) {
  at::manual_seed(8);
  for (const double unsupervised : {0.0, 0.5, 1.0}) {
    const Tensor hidden = at::randn({45, 12}), weight = at::randn({101, 12}),
                 targets = RandomTargets(45, 101, unsupervised);
    const Tensor logits = at::linear(hidden.to(at::kDouble), weight.to(at::kDouble));
    const Tensor picked = logits.log_softmax(1).gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1).neg();
    const Tensor expected = picked * (targets >= 0);
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const PoisonEmpty poison;
      Tensor best;
      const Tensor nll = TokenNll(hidden.to(dtype), weight.to(dtype), targets, &best);
      EXPECT_EQ(nll.scalar_type(), at::kFloat);
      EXPECT_TRUE(Close(nll, expected, SumRoundings(101), picked.max().item<double>()));
      EXPECT_TRUE(at::equal(best, logits.argmax(1)));
      EXPECT_TRUE(at::equal(TokenNll(hidden.to(dtype), weight.to(dtype), targets), nll));
    }
  }
  EXPECT_EQ(TokenNll(at::randn({0, 3}), at::randn({5, 3}), at::empty({0}, at::kLong)).numel(), 0);
}

TEST(TokenNll, TwoChunksSumToTheLoss) {
  at::manual_seed(9);
  const ThreadCount two(2);
  const Tensor hidden = at::randn({kManyRows, 3}).requires_grad_(true), weight = at::randn({kLargeVocab, 3});
  const Tensor targets = RandomTargets(kManyRows, kLargeVocab, 0.02);
  Tensor best;
  const Tensor nll = TokenNll(hidden, weight, targets, &best);
  EXPECT_FALSE(nll.requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(Close(nll.sum(), LinearCrossEntropy(hidden, weight, targets), SumRoundings(kManyRows)));
  EXPECT_TRUE(at::equal(best, at::linear(hidden, weight).argmax(1)));
}

}  // namespace
}  // namespace tensorcache::train
