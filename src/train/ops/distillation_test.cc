#include "train/ops/distillation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "train/ops/gradcheck_testing.h"
#include "train/ops/op_testing.h"

namespace tensorcache::train {
namespace {

struct Teacher {
  Tensor hidden, weight, targets;
  double temperature = 1;
};

// Inputs hidden, weight.
Op LossOf(const Teacher& teacher) {
  return [=](const std::vector<Tensor>& in, Backend backend) {
    return Distillation({.hidden = in[0],
                         .weight = in[1],
                         .teacher_hidden = teacher.hidden.to(in[0].scalar_type()),
                         .teacher_weight = teacher.weight.to(in[0].scalar_type()),
                         .targets = teacher.targets,
                         .temperature = teacher.temperature},
                        backend);
  };
}

Teacher RandomTeacher(int64_t rows, int64_t width, int64_t vocab) {
  return {.hidden = at::randn({rows, width}),
          .weight = at::randn({vocab, width}),
          .targets = at::randint(-1, vocab, {rows}, at::kLong)};
}

TEST(Distillation, ChunkedMatchesComposite) {
  at::manual_seed(1);
  const ThreadCount two(2);
  struct Case {
    int64_t rows, width, teacher_width, vocab;
    double temperature;
  };
  for (const Case& c : {Case{1, 5, 3, 3, 1}, {7, 16, 16, 33, 2}, {65, 37, 20, 100, 0.5}, {300, 24, 32, 1000, 1}}) {
    SCOPED_TRACE(::testing::Message() << c.rows << " rows of " << c.width << ", vocabulary " << c.vocab);
    Teacher teacher = RandomTeacher(c.rows, c.teacher_width, c.vocab);
    teacher.targets[0] = 0;
    teacher.temperature = c.temperature;
    const std::vector<Tensor> inputs = {at::randn({c.rows, c.width}), at::randn({c.vocab, c.width})};
    ExpectFusedMatchesComposite(LossOf(teacher), inputs, std::max({c.rows, c.width, c.vocab}));
    ExpectEachGradientAlone(LossOf(teacher), inputs);
  }
}

TEST(Distillation, TwoChunks) {
  at::manual_seed(2);
  const ThreadCount two(2);
  constexpr int64_t kRows = 1001, kVocab = 20011;  // 64 MB hold 838 rows of this vocabulary
  ExpectFusedMatchesComposite(LossOf(RandomTeacher(kRows, 8, kVocab)),
                              {at::randn({kRows, 16}), at::randn({kVocab, 16})}, kVocab);
}

TEST(Distillation, IsZeroForTheTeacherItself) {
  at::manual_seed(3);
  const Teacher teacher = RandomTeacher(20, 12, 50);
  const OpRun run = RunOp(LossOf(teacher), {teacher.hidden, teacher.weight}, at::ones({}), Backend::kFused, at::kFloat);
  EXPECT_EQ(run.output.item<float>(), 0);
  EXPECT_TRUE(at::equal(run.gradients[0], at::zeros_like(teacher.hidden)));
  EXPECT_TRUE(at::equal(run.gradients[1], at::zeros_like(teacher.weight)));
}

TEST(Distillation, NothingSupervised) {
  Teacher teacher = RandomTeacher(6, 5, 9);
  teacher.targets.fill_(-1);
  const std::vector<Tensor> inputs = {at::randn({6, 5}), at::randn({9, 5})};
  const PoisonEmpty poison;
  const OpRun run = RunOp(LossOf(teacher), inputs, at::ones({}), Backend::kFused, at::kFloat);
  EXPECT_EQ(run.output.item<float>(), 0);
  EXPECT_TRUE(at::equal(run.gradients[0], at::zeros_like(inputs[0])));
  EXPECT_TRUE(at::equal(run.gradients[1], at::zeros_like(inputs[1])));
}

TEST(Distillation, Gradcheck) {
  at::manual_seed(4);
  const ThreadCount one(1);
  Teacher teacher = RandomTeacher(4, 3, 7);
  teacher.temperature = 1.5;
  for (const Backend backend : {Backend::kAuto, Backend::kComposite}) {
    const auto f = [&](const std::vector<Tensor>& in) { return std::vector{LossOf(teacher)(in, backend)}; };
    EXPECT_TRUE(Gradcheck(f, {at::randn({4, 5}, at::kDouble), at::randn({7, 5}, at::kDouble)}));
  }
}

}  // namespace
}  // namespace tensorcache::train
