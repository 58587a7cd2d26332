#include "kernels/norm/softmax_cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "kernels/norm/softmax_cross_entropy_ref.h"
#include "testing/kernel_testing.h"

namespace tensorcache {
namespace {

using testing::ForEachTarget;
using testing::GuardedBuffer;
using testing::RowBuffer;
using testing::WithinNorm;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kRows = 5;

// As for softmax (norm_test.cc): errors of a sum grow like the square root of the terms one accumulator takes.
double Ulps(int64_t width) { return 6 + std::sqrt(static_cast<double>(width)) / 4; }

// Rows of logits with targets: the first column, the last, one with no loss, and two anywhere.
struct Problem {
  Problem(int64_t width, double scale, Rng& rng) : x(1, 1, kRows, width, 3) {
    x.FillNormal(rng, scale);
    const auto any = [&] { return static_cast<int64_t>(rng.Below(static_cast<uint64_t>(width))); };
    targets = {0, width - 1, -1, any(), any()};
  }
  CrossEntropyArgs Args(GuardedBuffer& nll, RowBuffer* dx, int64_t* best) const {
    return {.rows = kRows,
            .width = x.D,
            .x = x.Row(0, 0, 0),
            .x_stride = x.D + x.pad,
            .targets = targets.data(),
            .nll = nll.data(),
            .dx = dx != nullptr ? dx->Row(0, 0, 0) : nullptr,
            .dx_stride = dx != nullptr ? dx->D + dx->pad : 0,
            .best = best};
  }

  RowBuffer x;
  std::vector<int64_t> targets;
};

TEST(SoftmaxCrossEntropy, MatchesReference) {
  ForEachTarget([](const std::string&) {
    Rng rng(1);
    for (const int64_t width : {1, 3, 16, 31, 80, 128, 1000, 5003}) {
      for (const double scale : {1.0, 30.0, 1e4}) {
        SCOPED_TRACE(::testing::Message() << "width " << width << " scale " << scale);
        const Problem problem(width, scale, rng);
        GuardedBuffer nll(kRows), nll_expected(kRows), nll_only(kRows);
        RowBuffer dx(1, 1, kRows, width, 1), dx_expected = dx;
        std::vector<int64_t> best(kRows, -7), best_expected = best;
        SoftmaxCrossEntropyReference(problem.Args(nll_expected, &dx_expected, best_expected.data()));
        SoftmaxCrossEntropy(problem.Args(nll, &dx, best.data()));
        SoftmaxCrossEntropy(problem.Args(nll_only, nullptr, nullptr));
        ASSERT_TRUE(nll.Intact() && dx.PadsIntact() && nll_only.Intact());
        EXPECT_EQ(best, best_expected);
        for (int64_t row = 0; row < kRows; ++row) {
          // The logits' difference is exact in double; the rest is the relative error of the sum, and one rounding.
          ASSERT_TRUE(WithinNorm(&nll[row], &nll_expected[row], 1, 1 + std::abs(nll_expected[row]), Ulps(width)));
          ASSERT_EQ(nll_only[row], nll[row]);
          ASSERT_TRUE(WithinNorm(dx.Row(0, 0, row), dx_expected.Row(0, 0, row), width, 1, Ulps(width)));
        }
        // Over the logits themselves.
        Problem in_place = problem;
        SoftmaxCrossEntropy(in_place.Args(nll, &in_place.x, nullptr));
        ASSERT_TRUE(in_place.x.PadsIntact());
        ASSERT_EQ(in_place.x.Values(), dx.Values());
      }
    }
  });
}

TEST(SoftmaxCrossEntropy, LargeAndInfiniteLogits) {
  ForEachTarget([](const std::string&) {
    const auto nll = [](std::vector<float> x, int64_t target, std::vector<float>* dx = nullptr) {
      float result = -1;
      SoftmaxCrossEntropy({.rows = 1,
                           .width = std::ssize(x),
                           .x = x.data(),
                           .targets = &target,
                           .nll = &result,
                           .dx = dx != nullptr ? x.data() : nullptr});
      if (dx != nullptr) *dx = std::move(x);
      return result;
    };
    std::vector<float> dx;
    EXPECT_EQ(nll({1e4f, -1e4f}, 0, &dx), 0);
    EXPECT_EQ(dx, (std::vector<float>{0, 0}));
    EXPECT_EQ(nll({1e4f, -1e4f}, 1, &dx), 2e4f);
    EXPECT_EQ(dx, (std::vector<float>{1, -1}));
    EXPECT_EQ(nll({-kInf, 3}, 1, &dx), 0);
    EXPECT_EQ(dx, (std::vector<float>{0, 0}));
    EXPECT_EQ(nll({-kInf, 3}, 0), kInf);
    EXPECT_EQ(nll({kNan, 3}, -1, &dx), 0);
    EXPECT_EQ(dx, (std::vector<float>{0, 0}));
    for (const std::vector<float>& x : {std::vector<float>{1, kNan, 2}, {kNan, kNan}, {1, kInf}, {-kInf, -kInf}}) {
      EXPECT_TRUE(std::isnan(nll(x, 0, &dx)));
      EXPECT_TRUE(std::isnan(dx[0]) && std::isnan(dx[1]));
    }
  });
}

TEST(SoftmaxCrossEntropy, BestIsTheFirstOfEquals) {
  ForEachTarget([](const std::string&) {
    std::vector<float> x(100, 1.0f);
    x[37] = x[38] = x[99] = 2.0f;
    const int64_t target = -1;
    float nll;
    int64_t best = -1;
    SoftmaxCrossEntropy({.rows = 1, .width = 100, .x = x.data(), .targets = &target, .nll = &nll, .best = &best});
    EXPECT_EQ(best, 37);
    x.assign(100, kNan);
    SoftmaxCrossEntropy({.rows = 1, .width = 100, .x = x.data(), .targets = &target, .nll = &nll, .best = &best});
    EXPECT_EQ(best, 0);
  });
}

TEST(SoftmaxCrossEntropy, ReferenceGradientMatchesFiniteDifferences) {
  Rng rng(2);
  constexpr int64_t kWidth = 9;
  const Problem problem(kWidth, 1.0, rng);
  GuardedBuffer nll(kRows);
  RowBuffer dx(1, 1, kRows, kWidth);
  SoftmaxCrossEntropyReference(problem.Args(nll, &dx, nullptr));
  for (int64_t row = 0; row < kRows; ++row) {
    const int64_t target = problem.targets[static_cast<size_t>(row)];
    if (target < 0) continue;
    const float* values = problem.x.Row(0, 0, row);
    std::vector<double> x(values, values + kWidth);
    const auto loss = [&] {
      double sum = 0;
      for (const double v : x) sum += std::exp(v);
      return std::log(sum) - x[static_cast<size_t>(target)];
    };
    ASSERT_NEAR(nll[row], loss(), 1e-6);
    for (int64_t i = 0; i < kWidth; ++i) {
      constexpr double kStep = 1e-6;
      double& parameter = x[static_cast<size_t>(i)];
      const double value = parameter;
      parameter = value + kStep;
      const double up = loss();
      parameter = value - kStep;
      // The gradient is rounded to float; differences of doubles with this step are exact to about 1e-9.
      ASSERT_NEAR(dx.Row(0, 0, row)[i], (up - loss()) / (2 * kStep), 1e-7);
      parameter = value;
    }
  }
}

}  // namespace
}  // namespace tensorcache
