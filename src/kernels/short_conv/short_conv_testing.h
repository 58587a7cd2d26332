// Random problems for the tests of the short convolution: inputs with odd strides, everything unread or unwritten
// poisoned, and bounds on what rounding may do to each result.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/rng.h"
#include "kernels/short_conv/short_conv_ref.h"
#include "tensorcache/kernels/short_conv.h"
#include "testing/kernel_testing.h"

namespace tensorcache::short_conv_testing {

using testing::GuardedBuffer;
using testing::RowBuffer;
using testing::RowBufferOf;
using Wide = RowBufferOf<double>;

// A float rounds by at most this fraction of itself.
inline constexpr double kRounding = std::numeric_limits<float>::epsilon() / 2;

inline int64_t Kept(const ShortConvShape& n) { return std::max<int64_t>(0, n.taps - 1); }

inline std::string Describe(const ShortConvShape& n) {
  return (::testing::Message() << "B=" << n.B << " H=" << n.H << " T=" << n.T << " D=" << n.D << " taps=" << n.taps
                               << " unit=" << n.unit)
      .GetString();
}

template <class Real>
struct GradientsOf {
  explicit GradientsOf(const ShortConvShape& n)
      : x(n.B, n.H, n.T, n.D, 1), weight(n.B, n.H, n.taps, n.D, 2), past(n.B, n.H, Kept(n), n.D, 3) {}

  RowBufferOf<Real> x, weight, past;
};

// Inputs with odd strides, all different.
template <class Real>
struct ProblemOf {
  explicit ProblemOf(const ShortConvShape& n)
      : n(n),
        x(n.B, n.H, n.T, n.D, 3),
        past(n.B, n.H, Kept(n), n.D, 5),
        d_y(n.B, n.H, n.T, n.D, 2),
        weight(n.H, 1, n.taps, n.D) {}

  ShortConvForwardArgs<Real> Forward(const Rows<Real>& y) const {
    return {.shape = n,
            .x = x.crows(),
            .weight = n.taps > 0 ? weight.buffer.data() : nullptr,
            .past = with_past ? past.crows() : Rows<const Real>(),
            .y = y};
  }
  ShortConvBackwardArgs<Real> Backward(GradientsOf<Real>& to) const {
    return {.shape = n,
            .x = x.crows(),
            .weight = n.taps > 0 ? weight.buffer.data() : nullptr,
            .past = with_past ? past.crows() : Rows<const Real>(),
            .d_y = d_y.crows(),
            .d_x = to.x.rows(),
            .d_weight = to.weight.rows(),
            .d_past = to.past.rows()};
  }

  ShortConvShape n;
  RowBufferOf<Real> x, past, d_y;
  RowBufferOf<Real> weight;  // dense, (H, taps, D)
  bool with_past = true;
};
using Problem = ProblemOf<float>;

inline Problem RandomProblem(const ShortConvShape& n, bool with_past, Rng& rng, double scale = 1) {
  Problem problem(n);
  problem.with_past = with_past;
  problem.x.FillNormal(rng, scale);
  if (with_past) problem.past.FillNormal(rng, scale);
  problem.d_y.FillNormal(rng);
  problem.weight.FillNormal(rng);
  return problem;
}

inline ProblemOf<double> Widened(const Problem& from) {
  ProblemOf<double> to(from.n);
  to.x = from.x.Cast<double>();
  to.past = from.past.Cast<double>();
  to.d_y = from.d_y.Cast<double>();
  to.weight = from.weight.Cast<double>();
  to.with_past = from.with_past;
  return to;
}

// Of the absolute values of all inputs, and without the scaling: its outputs and gradients are the sums of the absolute
// values of what the problem's own sum up.
inline ProblemOf<double> Magnitudes(const ProblemOf<double>& from) {
  ProblemOf<double> to = from;
  to.n.unit = false;
  for (Wide* x : {&to.x, &to.past, &to.d_y, &to.weight}) x->ForEach([](double& v) { v = std::abs(v); });
  return to;
}

inline Wide Output(const ProblemOf<double>& problem) {
  const ShortConvShape& n = problem.n;
  Wide y(n.B, n.H, n.T, n.D);
  ShortConvForwardReference(problem.Forward(y.rows()), 0, n.B * n.H);
  return y;
}

inline GradientsOf<double> Gradients(const ProblemOf<double>& problem) {
  GradientsOf<double> gradients(problem.n);
  ShortConvBackwardReference(problem.Backward(gradients), 0, problem.n.B * problem.n.H);
  return gradients;
}

// What rounding may do to a problem's results, to first order in kRounding; `kSlack` is for the higher ones.
inline constexpr double kSlack = 1.01;

struct Bounds {
  // One rounding for each product and each sum.
  explicit Bounds(const ProblemOf<double>& problem)
      : y(problem.n.B, problem.n.H, problem.n.T, problem.n.D), d_z(y), d_z_error(y), gradients(problem.n) {
    const ShortConvShape& n = problem.n;
    const double sums = static_cast<double>(n.taps + 1) * kRounding;
    ProblemOf<double> plain = problem;
    plain.n.unit = false;
    const Wide z = Output(plain), size = Output(Magnitudes(problem));
    for (int64_t row = 0; row < n.B * n.H * n.T; ++row) {
      const int64_t b = row / (n.H * n.T), h = row / n.T % n.H, t = row % n.T;
      std::vector<double> z_error;
      for (int64_t d = 0; d < n.D; ++d) z_error.push_back(sums * size.Row(b, h, t)[d]);
      AddRow(n, z.Row(b, h, t), z_error, problem.d_y.Row(b, h, t), b, h, t);
    }
    // d_z is summed with weights and with inputs: its own errors go through the same sums, and each sum rounds.
    ProblemOf<double> through = Magnitudes(problem);
    through.d_y = d_z_error;
    gradients = Gradients(through);
    through.d_y = d_z;
    const GradientsOf<double> sizes = Gradients(through);
    // A weight's sum is made of those of chunks, each of two halves.
    const int64_t chunks = n.T / 32 + 1;
    const double weight_sums = static_cast<double>(16 + 3 + chunks) * kRounding;
    Add(gradients.x, sizes.x, sums);
    Add(gradients.past, sizes.past, sums);
    Add(gradients.weight, sizes.weight, weight_sums);
  }

  void AddRow(const ShortConvShape& n, const double* z, const std::vector<double>& z_error, const double* g, int64_t b,
              int64_t h, int64_t t) {
    if (!n.unit) {
      for (int64_t d = 0; d < n.D; ++d) {
        y.Row(b, h, t)[d] = z_error[static_cast<size_t>(d)];
        d_z.Row(b, h, t)[d] = std::abs(g[d]);
        d_z_error.Row(b, h, t)[d] = 0;
      }
      return;
    }
    // A row's sums are four, of vectors with at least one lane, and then the sum of those and of the lanes: so many
    // in turn.
    const double in_turn = static_cast<double>(n.D) / 4 + 10;
    double square = 1e-12, error_square = 0, dot = 0, dot_size = 0, dot_error = 0;
    for (int64_t d = 0; d < n.D; ++d) {
      const double error = z_error[static_cast<size_t>(d)];
      square += z[d] * z[d];
      error_square += error * error;
      dot += z[d] * g[d];
      dot_size += std::abs(z[d] * g[d]);
      dot_error += error * std::abs(g[d]);
    }
    const double r = 1 / std::sqrt(square);
    // Of r, relative: that of |z|, half of its square's sum, and the square root, the quotient and half of a sum.
    const double z_relative = std::sqrt(error_square) * r;
    const double r_error = z_relative / (1 - z_relative) + (in_turn / 2 + 2.5) * kRounding;
    const double c = r * dot,
                 c_error = r * (dot_error + in_turn * kRounding * dot_size) + std::abs(c) * (r_error + kRounding);
    for (int64_t d = 0; d < n.D; ++d) {
      const double unit = z[d] * r;
      const double unit_error =
          z_error[static_cast<size_t>(d)] * r * (1 + r_error) + std::abs(unit) * (r_error + kRounding);
      const double gradient = r * (g[d] - unit * c);
      const double inner = unit_error * std::abs(c) + (std::abs(unit) + unit_error) * c_error +
                           kRounding * (std::abs(g[d]) + 2 * std::abs(unit * c));
      y.Row(b, h, t)[d] = unit_error;
      d_z.Row(b, h, t)[d] = std::abs(gradient);
      d_z_error.Row(b, h, t)[d] = r * inner * (1 + r_error) + std::abs(gradient) * (r_error + kRounding);
    }
  }

  static void Add(Wide& to, const Wide& sizes, double factor) {
    const std::vector<double> values = sizes.Values();
    size_t i = 0;
    to.ForEach([&](double& x) { x += factor * values[i++]; });
  }

  Wide y;
  Wide d_z, d_z_error;  // |d_z|, and its error
  GradientsOf<double> gradients;
};

template <class Real>
void ExpectWithin(const RowBufferOf<Real>& actual, const Wide& expected, const Wide& bounds, const char* what) {
  EXPECT_TRUE(actual.PadsIntact()) << what;
  const std::vector<Real> values = actual.Values();
  const std::vector<double> wanted = expected.Values(), within = bounds.Values();
  ASSERT_EQ(values.size(), wanted.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const double error = std::abs(static_cast<double>(values[i]) - wanted[i]);
    // Below the normal floats the rounding is no fraction.
    ASSERT_LE(error, kSlack * within[i] + std::numeric_limits<float>::min())
        << what << ", element " << i << ": " << values[i] << " instead of " << wanted[i];
  }
}

inline void RunForward(const ShortConvForwardArgs<float>& args) {
  ASSERT_TRUE(ValidateShortConv(args).ok());
  const int64_t items = args.shape.B * args.shape.H;
  ShortConvForward(args, 0, items / 2);
  ShortConvForward(args, items / 2, items);
}

inline void RunBackward(const ShortConvBackwardArgs<float>& args) {
  ASSERT_TRUE(ValidateShortConvBackward(args).ok());
  const int64_t items = args.shape.B * args.shape.H;
  GuardedBuffer scratch(ShortConvBackwardScratchFloats(args.shape));
  ShortConvBackward(args, 0, items / 2, scratch.data());
  scratch.Poison();
  ShortConvBackward(args, items / 2, items, scratch.data());
  EXPECT_TRUE(scratch.Intact());
}

}  // namespace tensorcache::short_conv_testing
