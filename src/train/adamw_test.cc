#include "train/adamw.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

namespace tensorcache::train {
namespace {

TEST(LearningRate, WarmsUpThenFollowsACosine) {
  TrainOptions options;
  options.steps = 110;
  options.warmup_steps = 10;
  options.learning_rate = 1;
  options.min_learning_rate = 0.1;
  EXPECT_DOUBLE_EQ(LearningRate(options, 0), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(options, 9), 1);
  EXPECT_DOUBLE_EQ(LearningRate(options, 10), 1);
  EXPECT_NEAR(LearningRate(options, 109), 0.1, 1e-12);
  for (int64_t step = 10; step < 109; ++step) EXPECT_GT(LearningRate(options, step), LearningRate(options, step + 1));
  options.min_learning_rate = 1;
  EXPECT_DOUBLE_EQ(LearningRate(options, 60), 1);
}

// The update written down, in double.
struct Reference {
  double value, m = 0, v = 0;
  void Update(double gradient, double rate, double decay, int step, const TrainOptions& o) {
    value -= rate * decay * value;
    m = o.beta1 * m + (1 - o.beta1) * gradient;
    v = o.beta2 * v + (1 - o.beta2) * gradient * gradient;
    const double m_hat = m / (1 - std::pow(o.beta1, step)), v_hat = v / (1 - std::pow(o.beta2, step));
    value -= rate * m_hat / (std::sqrt(v_hat) + o.adam_epsilon);
  }
};

TEST(AdamW, FollowsItsFormulaForEachKindOfParameter) {
  TrainOptions options;
  options.weight_decay = 0.1;
  options.memory_learning_rate_multiple = 3;
  options.memory_output_learning_rate_multiple = 2;
  options.clip_norm = 0.5;
  const std::vector<ParameterKind> kinds = {ParameterKind::kMatrix, ParameterKind::kVector,
                                            ParameterKind::kMemoryOutput, ParameterKind::kMemory};
  std::vector<NamedParameter> parameters;
  std::vector<Reference> references;
  for (size_t i = 0; i < kinds.size(); ++i) {
    const double start = 0.5 + static_cast<double>(i);
    parameters.push_back({fmt::format("p{}", i), kinds[i], at::full({1}, start, at::kFloat).requires_grad_(true)});
    references.push_back({start});
  }
  AdamW optimizer(parameters, options);
  for (int step = 1; step <= 5; ++step) {
    double squares = 0;
    std::vector<double> gradients;
    for (size_t i = 0; i < kinds.size(); ++i) {
      gradients.push_back(std::sin(step + 2.0 * static_cast<double>(i)));
      squares += gradients[i] * gradients[i];
      parameters[i].tensor.mutable_grad() = at::full({1}, gradients[i], at::kFloat);
    }
    const double norm = std::sqrt(squares), scale = norm > options.clip_norm ? options.clip_norm / norm : 1;
    EXPECT_NEAR(optimizer.Step(0.01), norm, 1e-6 * norm);
    EXPECT_EQ(optimizer.updates(), step);
    for (size_t i = 0; i < kinds.size(); ++i) {
      const double rate = std::array{0.01, 0.01, 0.02, 0.03}[i];
      const double decay = std::array{0.1, 0.0, 0.1, 0.0}[i];
      references[i].Update(gradients[i] * scale, rate, decay, step, options);
      EXPECT_NEAR(parameters[i].tensor.item<double>(), references[i].value, 1e-5) << "kind " << i << ", step " << step;
      EXPECT_FALSE(parameters[i].tensor.grad().defined());
    }
  }
}

TEST(AdamW, AGradientThatIsNoNumberChangesNothing) {
  const Tensor tensor = at::ones({3}, at::kFloat).requires_grad_(true);
  AdamW optimizer({{"p", ParameterKind::kMatrix, tensor}}, {});
  tensor.mutable_grad() = at::full({3}, NAN, at::kFloat);
  EXPECT_FALSE(std::isfinite(optimizer.Step(0.1)));
  EXPECT_TRUE(tensor.eq(1).all().item<bool>());
  EXPECT_EQ(optimizer.updates(), 0);
}

TEST(AdamW, FrozenParametersHaveNoState) {
  const Tensor learned = at::ones({3}, at::kFloat).requires_grad_(true), frozen = at::ones({2}, at::kFloat);
  const AdamW optimizer({{"a", ParameterKind::kMatrix, learned}, {"b", ParameterKind::kMemory, frozen}}, {});
  EXPECT_EQ(optimizer.State().size(), 3U);
}

}  // namespace
}  // namespace tensorcache::train
