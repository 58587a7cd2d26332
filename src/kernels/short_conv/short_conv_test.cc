// The short convolution: SIMD against the reference on every target with bounds on its rounding, and the reference's
// gradients against finite differences.
#include "tensorcache/kernels/short_conv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/rng.h"
#include "kernels/short_conv/short_conv_testing.h"

namespace tensorcache {
namespace {

using testing::ForEachTarget;
using namespace short_conv_testing;  // NOLINT(google-build-using-namespace)

void CheckAgainstReference(const ShortConvShape& n, bool with_past, double scale = 1) {
  SCOPED_TRACE(Describe(n) + " past=" + std::to_string(with_past) + " scale=" + std::to_string(scale));
  Rng rng(1, static_cast<uint64_t>(n.T * 1000 + n.D * 20 + n.taps));
  const Problem problem = RandomProblem(n, with_past, rng, scale);
  const ProblemOf<double> wide = Widened(problem);
  const Wide y = Output(wide);
  const GradientsOf<double> gradients = Gradients(wide);
  const Bounds bounds(wide);
  ForEachTarget([&](const std::string&) {
    RowBuffer fast_y(n.B, n.H, n.T, n.D, 7);
    RunForward(problem.Forward(fast_y.rows()));
    ExpectWithin(fast_y, y, bounds.y, "y");
    GradientsOf<float> fast(n);
    RunBackward(problem.Backward(fast));
    ExpectWithin(fast.x, gradients.x, bounds.gradients.x, "d_x");
    ExpectWithin(fast.weight, gradients.weight, bounds.gradients.weight, "d_weight");
    ExpectWithin(fast.past, gradients.past, bounds.gradients.past, "d_past");
  });
}

TEST(ShortConv, MatchesReference) {
  for (const int64_t D : {1, 3, 7, 33, 128}) {
    for (const int64_t T : {0, 1, 2, 5, 32, 70}) {
      for (const int64_t taps : {0, 1, 2, 3, 4, 7, 16}) {
        for (const bool unit : {false, true}) {
          CheckAgainstReference({.B = 2, .H = 1 + (T + taps) % 3, .T = T, .D = D, .taps = taps, .unit = unit},
                                taps % 2 == 0);
        }
      }
    }
  }
  for (const bool with_past : {false, true}) {
    for (const bool unit : {false, true}) {
      CheckAgainstReference({.B = 1, .H = 2, .T = 300, .D = 64, .taps = 4, .unit = unit}, with_past);
      CheckAgainstReference({.B = 2, .H = 2, .T = 33, .D = 80, .taps = 5, .unit = unit}, with_past);
      CheckAgainstReference({.B = 1, .H = 1, .T = 3, .D = 20, .taps = 9, .unit = unit}, with_past);
    }
  }
  CheckAgainstReference({.B = 0, .H = 2, .T = 3, .D = 4, .taps = 2}, true);
  CheckAgainstReference({.B = 2, .H = 0, .T = 3, .D = 4, .taps = 2}, true);
}

// Rows around and below the length that counts as none, and rows whose squares are barely finite.
TEST(ShortConv, TinyAndHugeRows) {
  for (const double scale : {1e-30, 1e-9, 1e-6, 1e-3, 1e3, 1e17}) {
    for (const int64_t taps : {0, 3}) {
      CheckAgainstReference({.B = 1, .H = 2, .T = 9, .D = 33, .taps = taps, .unit = true}, true, scale);
    }
  }
}

TEST(ShortConv, ZeroRowsStayZero) {
  const ShortConvShape n{.T = 3, .D = 37, .taps = 2, .unit = true};
  Rng rng(2);
  Problem problem = RandomProblem(n, false, rng);
  problem.x.ForEach([](float& x) { x = 0; });
  ForEachTarget([&](const std::string&) {
    RowBuffer y(1, 1, n.T, n.D);
    RunForward(problem.Forward(y.rows()));
    for (const float v : y.Values()) ASSERT_EQ(v, 0.0f);
    GradientsOf<float> gradients(n);
    RunBackward(problem.Backward(gradients));
    for (const float v : gradients.weight.Values()) ASSERT_EQ(v, 0.0f);
    // d_z = 1e6 d_y, of which the last row's d_x is made; sqrt and quotient round.
    const float *d_x = gradients.x.Row(0, 0, 2), *d_y = problem.d_y.Row(0, 0, 2), *w = problem.weight.Row(0, 0, 0);
    for (int64_t d = 0; d < n.D; ++d) {
      const double size = 1e6 * std::abs(d_y[d]) * (1 + std::abs(w[d]));
      ASSERT_NEAR(d_x[d], 1e6 * d_y[d] * (1.0 + w[d]), 8 * kRounding * size);
    }
  });
}

TEST(ShortConv, InPlaceWithoutTaps) {
  ForEachTarget([](const std::string&) {
    Rng rng(3);
    for (const bool unit : {false, true}) {
      Problem problem = RandomProblem({.B = 2, .H = 3, .T = 11, .D = 21, .unit = unit}, false, rng);
      RowBuffer y(2, 3, 11, 21, 4);
      RunForward(problem.Forward(y.rows()));
      const std::vector<float> before = problem.x.Values();
      RunForward(problem.Forward(problem.x.rows()));
      EXPECT_TRUE(problem.x.PadsIntact());
      EXPECT_EQ(problem.x.Values(), y.Values());
      EXPECT_EQ(y.Values() == before, !unit);
    }
  });
}

// Each gradient alone, and none, is what it is among all.
TEST(ShortConv, SkipsWhatIsNotAskedFor) {
  ForEachTarget([](const std::string&) {
    Rng rng(4);
    for (const bool unit : {false, true}) {
      const Problem problem = RandomProblem({.B = 2, .H = 2, .T = 45, .D = 19, .taps = 6, .unit = unit}, true, rng);
      GradientsOf<float> all(problem.n);
      RunBackward(problem.Backward(all));
      for (const int wanted : {0, 1, 2, 3}) {
        GradientsOf<float> one(problem.n);
        auto args = problem.Backward(one);
        if (wanted != 1) args.d_x = {};
        if (wanted != 2) args.d_weight = {};
        if (wanted != 3) args.d_past = {};
        RunBackward(args);
        EXPECT_EQ(one.x.Values() == all.x.Values(), wanted == 1);
        EXPECT_EQ(one.weight.Values() == all.weight.Values(), wanted == 2);
        EXPECT_EQ(one.past.Values() == all.past.Values(), wanted == 3);
      }
    }
  });
}

// sum y . d_y through the reference in double.
double Loss(const ProblemOf<double>& problem) {
  const std::vector<double> y = Output(problem).Values(), d_y = problem.d_y.Values();
  double loss = 0;
  for (size_t i = 0; i < y.size(); ++i) loss += y[i] * d_y[i];
  return loss;
}

// Central differences with step h err by h^2 / 6 times the third derivative, and by 1e-16 / h times the loss. The third
// derivative of a row of unit length is about 10 s^3 |d_y|, s being what the parameter moves z by, relative to |z|: at
// most 3 or so. Up to ten rows with |d_y| = 2 see a parameter: 1e-7 in all.
TEST(ShortConv, ReferenceGradientsMatchFiniteDifferences) {
  constexpr double kStep = 1e-5, kTolerance = 1e-7;
  Rng rng(5);
  for (const int64_t taps : {0, 1, 2, 4}) {
    for (const bool unit : {false, true}) {
      for (const int64_t T : {1, 5}) {
        const ShortConvShape n{.B = 2, .H = 2, .T = T, .D = 4, .taps = taps, .unit = unit};
        SCOPED_TRACE(Describe(n));
        ProblemOf<double> problem = Widened(RandomProblem(n, true, rng));
        GradientsOf<double> gradients = Gradients(problem);
        const auto check = [&](Wide& input, const Wide& gradient, const char* what) {
          const std::vector<double> expected = gradient.Values();
          size_t i = 0;
          input.ForEach([&](double& x) {
            const double saved = x;
            x = saved + kStep;
            const double above = Loss(problem);
            x = saved - kStep;
            const double below = Loss(problem);
            x = saved;
            ASSERT_NEAR(expected[i], (above - below) / (2 * kStep), kTolerance) << what << ", element " << i;
            ++i;
          });
        };
        check(problem.x, gradients.x, "d_x");
        check(problem.past, gradients.past, "d_past");
        Wide weight(n.H, 1, n.taps, n.D);  // d_weight, summed over the batch
        weight.ForEach([](double& x) { x = 0; });
        for (int64_t row = 0; row < n.B * n.H * n.taps; ++row) {
          const int64_t b = row / (n.H * n.taps), h = row / n.taps % n.H, j = row % n.taps;
          for (int64_t d = 0; d < n.D; ++d) weight.Row(h, 0, j)[d] += gradients.weight.Row(b, h, j)[d];
        }
        check(problem.weight, weight, "d_weight");
      }
    }
  }
}

TEST(ShortConv, ValidateNamesTheMistake) {
  Rng rng(7);
  const Problem problem = RandomProblem({.B = 2, .H = 3, .T = 4, .D = 5, .taps = 3}, true, rng);
  RowBuffer y(2, 3, 4, 5);
  GradientsOf<float> gradients(problem.n);
  const auto expect_bad = [&](const char* part, const auto& spoil) {
    auto forward = problem.Forward(y.rows());
    auto backward = problem.Backward(gradients);
    spoil(forward);
    spoil(backward);
    for (const Status& status : {ValidateShortConv(forward), ValidateShortConvBackward(backward)}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
  };
  expect_bad("B = -1", [](auto& a) { a.shape.B = -1; });
  expect_bad("H = -1", [](auto& a) { a.shape.H = -1; });
  expect_bad("T = -1", [](auto& a) { a.shape.T = -1; });
  expect_bad("D >= 1", [](auto& a) { a.shape.D = 0; });
  expect_bad("taps; got 17", [](auto& a) { a.shape.taps = 17; });
  expect_bad("taps; got -1", [](auto& a) { a.shape.taps = -1; });
  expect_bad("too large", [](auto& a) { a.shape.T = int64_t{1} << 40; });
  expect_bad("x is missing", [](auto& a) { a.x = {}; });
  expect_bad("no weight", [](auto& a) { a.weight = nullptr; });
  auto forward = problem.Forward({});
  EXPECT_NE(ValidateShortConv(forward).message().find("y is missing"), std::string::npos);
  auto backward = problem.Backward(gradients);
  backward.d_y = {};
  EXPECT_NE(ValidateShortConvBackward(backward).message().find("d_y is missing"), std::string::npos);
  forward.shape.T = backward.shape.T = 0;
  EXPECT_TRUE(ValidateShortConv(forward).ok());
  EXPECT_TRUE(ValidateShortConvBackward(backward).ok());
  EXPECT_DEATH(ShortConvForward(problem.Forward(y.rows()), 0, 7), "CHECK failed");
}

}  // namespace
}  // namespace tensorcache
