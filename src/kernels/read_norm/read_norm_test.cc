#include "tensorcache/kernels/read_norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "kernels/read_norm/read_norm_ref.h"
#include "testing/kernel_testing.h"

namespace tensorcache {
namespace {

using testing::ForEachTarget;
using testing::GuardedBuffer;
using testing::GuardedBufferOf;
using testing::RowBuffer;
using testing::RowBufferOf;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kEps = std::numeric_limits<float>::epsilon();
constexpr double kLeast = std::numeric_limits<float>::denorm_min();
constexpr int64_t kWidths[] = {1, 3, 7, 33, 64, 128};

enum class Floor { kHard, kSoft, kZero };  // no c, c, c = 0
constexpr Floor kFloors[] = {Floor::kHard, Floor::kSoft, Floor::kZero};

// A sum over the row takes a term through at most D / 4 + 3 additions to its accumulator (one of four, of one lane or
// more), 2 among the accumulators and 6 among up to 64 lanes; the term itself is rounded once where there is no fused
// multiplication. Each is half an epsilon.
double SumRoundings(int64_t D) { return static_cast<double>(D) / 4 + 12; }
// Of r: the root halves the relative error of the sum, to which 1 / D, the product with it, c^2 and the addition add 4;
// then the root and the division.
double RootRoundings(int64_t D) { return (SumRoundings(D) + 4) / 2 + 2; }
// Of y, relative to each element: r and two products.
double ForwardUlps(int64_t D) { return (RootRoundings(D) + 2) / 2; }
// Of d_x, relative to r (|g| + |h| mean |g h|): r enters in front, in h and in the mean; the mean is a sum of rounded g
// times 1 / D; and there are h, the difference and the last product. That of d_c has no more.
double BackwardUlps(int64_t D) { return (3 * RootRoundings(D) + SumRoundings(D) + 8) / 2; }

// Any (B, H, T) of reads with parameters. `c` is poison for the hard norm.
template <class Real>
struct DataOf {
  DataOf(const ReadNormShape& n, Floor floor, Rng& rng, double scale = 1)
      : n(n), floor(floor), x(n.B, n.H, n.T, n.D, 3), d_y(n.B, n.H, n.T, n.D, 1), gamma(n.H * n.D), c(n.H) {
    x.FillNormal(rng, scale);
    d_y.FillNormal(rng);
    gamma.FillNormal(rng);
    if (floor == Floor::kSoft) c.FillNormal(rng, scale);
    if (floor == Floor::kZero) c.Fill(0);
  }

  const Real* Floors() const { return floor == Floor::kHard ? nullptr : c.data(); }
  ReadNormForwardArgs<Real> Forward(const Rows<Real>& y) const {
    return {.shape = n, .x = x.crows(), .gamma = gamma.data(), .c = Floors(), .y = y};
  }
  ReadNormBackwardArgs<Real> Backward(const Rows<Real>& d_x, Real* d_gamma, Real* d_c) const {
    return {.shape = n,
            .x = x.crows(),
            .gamma = gamma.data(),
            .c = Floors(),
            .d_y = d_y.crows(),
            .d_x = d_x,
            .d_gamma = d_gamma,
            .d_c = floor == Floor::kHard ? nullptr : d_c};
  }
  DataOf<double> Wide() const {
    Rng unused(0);
    DataOf<double> wide(n, floor, unused);
    wide.x = x.template Cast<double>();
    wide.d_y = d_y.template Cast<double>();
    std::copy_n(gamma.data(), gamma.size(), wide.gamma.data());
    std::copy_n(c.data(), c.size(), wide.c.data());
    return wide;
  }

  ReadNormShape n;
  Floor floor;
  RowBufferOf<Real> x, d_y;
  GuardedBufferOf<Real> gamma, c;
};
using Data = DataOf<float>;

// The gradients of one call.
template <class Real>
struct GradientsOf {
  explicit GradientsOf(const ReadNormShape& n) : d_x(n.B, n.H, n.T, n.D, 2), d_gamma(n.B * n.H * n.D), d_c(n.B * n.H) {}

  RowBufferOf<Real> d_x;
  GuardedBufferOf<Real> d_gamma, d_c;
};
using Gradients = GradientsOf<float>;

void Backward(const Data& data, Gradients& out) {
  const ReadNormBackwardArgs<float> args = data.Backward(out.d_x.rows(), out.d_gamma.data(), out.d_c.data());
  ASSERT_TRUE(ValidateReadNormBackward(args).ok());
  ReadNormBackward(args, 0, data.n.B * data.n.H);
}

template <class Body>
void ForEachRow(const ReadNormShape& n, const Body& body) {
  for (int64_t item = 0; item < n.B * n.H; ++item) {
    for (int64_t t = 0; t < n.T; ++t) body(item / n.H, item % n.H, t);
  }
}

void ExpectForwardMatches(const Data& data, const RowBuffer& actual) {
  RowBufferOf<double> expected(data.n.B, data.n.H, data.n.T, data.n.D);
  ReadNormForwardReference(data.Wide().Forward(expected.rows()));
  ForEachRow(data.n, [&](int64_t b, int64_t h, int64_t t) {
    for (int64_t i = 0; i < data.n.D; ++i) {
      const double want = expected.Row(b, h, t)[i];
      // The end of the range rounds once in h and once in y.
      const double least = (1 + std::abs(data.gamma[h * data.n.D + i])) * kLeast;
      ASSERT_NEAR(actual.Row(b, h, t)[i], want, ForwardUlps(data.n.D) * kEps * std::abs(want) + least)
          << "row " << b << " " << h << " " << t << " column " << i;
    }
  });
}

void ExpectBackwardMatches(const Data& data, const Gradients& actual) {
  const ReadNormShape& n = data.n;
  const DataOf<double> wide = data.Wide();
  GradientsOf<double> expected(n);
  ReadNormBackwardReference(wide.Backward(expected.d_x.rows(), expected.d_gamma.data(), expected.d_c.data()));
  std::vector<double> gamma_magnitude(static_cast<size_t>(n.B * n.H * n.D)),
      c_magnitude(static_cast<size_t>(n.B * n.H));
  ForEachRow(n, [&](int64_t b, int64_t h, int64_t t) {
    const double *x = wide.x.Row(b, h, t), *d_y = wide.d_y.Row(b, h, t);
    const double f = wide.floor == Floor::kHard ? kReadNormFloor : wide.c[h] * wide.c[h];
    double square = 0, mean = 0;
    for (int64_t i = 0; i < n.D; ++i) square += x[i] * x[i] / static_cast<double>(n.D);
    const double r = square + f == 0 ? 0 : 1 / std::sqrt(square + f);
    const auto g = [&](int64_t i) { return std::abs(d_y[i] * wide.gamma[h * n.D + i]); };
    for (int64_t i = 0; i < n.D; ++i) {
      mean += g(i) * std::abs(x[i] * r) / static_cast<double>(n.D);
      gamma_magnitude[static_cast<size_t>((b * n.H + h) * n.D + i)] += std::abs(d_y[i] * x[i] * r);
    }
    if (wide.floor != Floor::kHard) {
      c_magnitude[static_cast<size_t>(b * n.H + h)] += std::abs(wide.c[h]) * r * r * static_cast<double>(n.D) * mean;
    }
    for (int64_t i = 0; i < n.D; ++i) {
      const double magnitude = r * (g(i) + std::abs(x[i] * r) * mean);
      ASSERT_NEAR(actual.d_x.Row(b, h, t)[i], expected.d_x.Row(b, h, t)[i],
                  BackwardUlps(n.D) * kEps * magnitude + kLeast)
          << "row " << b << " " << h << " " << t << " column " << i;
    }
  });
  // h with its product, then T additions; at the end of the range, h times d_y and the product of each
  // row are rounded to less than 4 of its steps.
  const double gamma_ulps = (RootRoundings(n.D) + 2 + static_cast<double>(n.T)) / 2;
  const double gamma_least = static_cast<double>(n.T) * 4 * kLeast;
  for (int64_t i = 0; i < actual.d_gamma.size(); ++i) {
    const double magnitude = gamma_magnitude[static_cast<size_t>(i)];
    ASSERT_NEAR(actual.d_gamma[i], expected.d_gamma[i], gamma_ulps * kEps * magnitude + gamma_least) << "d_gamma " << i;
  }
  for (int64_t i = 0; i < actual.d_c.size() && wide.floor != Floor::kHard; ++i) {
    const double magnitude = c_magnitude[static_cast<size_t>(i)];
    ASSERT_NEAR(actual.d_c[i], expected.d_c[i], BackwardUlps(n.D) * kEps * magnitude + kLeast) << "d_c " << i;
  }
}

template <class Body>
void ForEachCase(const Body& body) {
  ForEachTarget([&](const std::string&) {
    Rng rng(1);
    for (const int64_t D : kWidths) {
      for (const int64_t T : {0, 1, 6}) {
        for (const Floor floor : kFloors) {
          SCOPED_TRACE(::testing::Message() << "T " << T << " D " << D << " floor " << static_cast<int>(floor));
          body(Data({.B = 2, .H = 3, .T = T, .D = D}, floor, rng));
        }
      }
    }
  });
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(a, b, {}, std::bit_cast<uint32_t, float>, std::bit_cast<uint32_t, float>);
}

TEST(ReadNorm, ForwardMatchesReference) {
  ForEachCase([](Data data) {
    const ReadNormShape& n = data.n;
    RowBuffer y(n.B, n.H, n.T, n.D, 2);
    ASSERT_TRUE(ValidateReadNorm(data.Forward(y.rows())).ok());
    ReadNormForward(data.Forward(y.rows()), 0, n.B * n.H);
    ASSERT_TRUE(y.PadsIntact());
    ExpectForwardMatches(data, y);
    ReadNormForward(data.Forward(data.x.rows()), 0, n.B * n.H);  // in place
    ASSERT_TRUE(data.x.PadsIntact());
    ASSERT_TRUE(SameBits(data.x.Values(), y.Values()));
  });
}

TEST(ReadNorm, BackwardMatchesReference) {
  ForEachCase([](const Data& data) {
    Gradients actual(data.n);
    Backward(data, actual);
    ASSERT_TRUE(actual.d_x.PadsIntact() && actual.d_gamma.Intact() && actual.d_c.Intact());
    ExpectBackwardMatches(data, actual);
  });
}

TEST(ReadNorm, GradientsAloneAndInPlace) {
  ForEachCase([](Data data) {
    const int64_t items = data.n.B * data.n.H;
    Gradients all(data.n), alone(data.n);
    Backward(data, all);
    ReadNormBackward(data.Backward({}, alone.d_gamma.data(), nullptr), 0, items);
    ReadNormBackward(data.Backward({}, nullptr, alone.d_c.data()), 0, items);
    ReadNormBackward(data.Backward(alone.d_x.rows(), nullptr, nullptr), 0, items);
    ReadNormBackward(data.Backward({}, nullptr, nullptr), 0, items);
    EXPECT_TRUE(SameBits(alone.d_x.Values(), all.d_x.Values()));
    for (int64_t i = 0; i < all.d_gamma.size(); ++i) ASSERT_EQ(alone.d_gamma[i], all.d_gamma[i]);
    for (int64_t i = 0; i < items && data.Floors() != nullptr; ++i) ASSERT_EQ(alone.d_c[i], all.d_c[i]);
    Data over_x = data;
    ReadNormBackward(over_x.Backward(over_x.x.rows(), alone.d_gamma.data(), nullptr), 0, items);
    EXPECT_TRUE(SameBits(over_x.x.Values(), all.d_x.Values()));
    ReadNormBackward(data.Backward(data.d_y.rows(), alone.d_gamma.data(), nullptr), 0, items);
    EXPECT_TRUE(SameBits(data.d_y.Values(), all.d_x.Values()));
    for (int64_t i = 0; i < all.d_gamma.size(); ++i) ASSERT_EQ(alone.d_gamma[i], all.d_gamma[i]);
  });
}

// Reads as (B, H, T, D), and a gradient that is the same for all tokens; then item by item and token by token.
TEST(ReadNorm, AnyStridesAndAnySplit) {
  ForEachTarget([](const std::string&) {
    Rng rng(2);
    const ReadNormShape n = {.B = 2, .H = 3, .T = 5, .D = 33};
    Data data(n, Floor::kSoft, rng);
    ForEachRow(
        n, [&](int64_t b, int64_t h, int64_t t) { std::copy_n(data.d_y.Row(b, h, 0), n.D, data.d_y.Row(b, h, t)); });
    RowBuffer y(n.B, n.H, n.T, n.D), by_head(n.B, n.T, n.H, n.D, 1), pieces = y;
    ReadNormForward(data.Forward(y.rows()), 0, n.B * n.H);
    const auto swapped = [](const Rows<float>& rows) {
      return Rows<float>{.data = rows.data, .batch = rows.batch, .head = rows.token, .token = rows.head};
    };
    ReadNormForward(data.Forward(swapped(by_head.rows())), 0, n.B * n.H);
    EXPECT_TRUE(by_head.PadsIntact());
    Gradients whole(n), shared(n);
    Backward(data, whole);
    ReadNormBackwardArgs<float> backward = data.Backward(shared.d_x.rows(), shared.d_gamma.data(), shared.d_c.data());
    backward.d_y.token = 0;
    for (int64_t item = 0; item < n.B * n.H; ++item) {
      const int64_t b = item / n.H, h = item % n.H;
      ReadNormBackward(backward, item, item + 1);
      for (int64_t t = 0; t < n.T; ++t) {
        for (int64_t i = 0; i < n.D; ++i) ASSERT_EQ(by_head.Row(b, t, h)[i], y.Row(b, h, t)[i]);
        ASSERT_TRUE(testing::IsCanary(pieces.Row(b, h, t)[0]));  // which the items before left alone
        ReadNormForwardArgs<float> token = data.Forward(pieces.rows());
        token.shape.T = 1;
        token.x.data += t * token.x.token;
        token.y.data += t * token.y.token;
        ReadNormForward(token, item, item + 1);
      }
    }
    EXPECT_TRUE(SameBits(pieces.Values(), y.Values()));
    EXPECT_TRUE(SameBits(shared.d_x.Values(), whole.d_x.Values()));
    for (int64_t i = 0; i < whole.d_gamma.size(); ++i) ASSERT_EQ(shared.d_gamma[i], whole.d_gamma[i]);
    for (int64_t i = 0; i < whole.d_c.size(); ++i) ASSERT_EQ(shared.d_c[i], whole.d_c[i]);
  });
}

// What an empty memory gives: exactly 0, with the gradient of the formula.
TEST(ReadNorm, ReadsOfZero) {
  ForEachTarget([](const std::string&) {
    Rng rng(3);
    for (const Floor floor : kFloors) {
      for (const int64_t D : kWidths) {
        SCOPED_TRACE(::testing::Message() << "D " << D << " floor " << static_cast<int>(floor));
        const ReadNormShape n = {.H = 2, .T = 3, .D = D};
        Data data(n, floor, rng);
        data.x.ForEach([](float& x) { x = 0; });
        RowBuffer y(1, n.H, n.T, D);
        ReadNormForward(data.Forward(y.rows()), 0, n.H);
        for (const float v : y.Values()) ASSERT_EQ(v, 0);
        Gradients gradients(n);
        Backward(data, gradients);
        ExpectBackwardMatches(data, gradients);
        for (const float v : gradients.d_x.Values())
          ASSERT_TRUE(std::isfinite(v) && (v == 0) == (floor == Floor::kZero));
        for (int64_t i = 0; i < n.H * D; ++i) ASSERT_EQ(gradients.d_gamma[i], 0);
        for (int64_t i = 0; i < n.H && data.Floors() != nullptr; ++i) ASSERT_EQ(gradients.d_c[i], 0);
      }
    }
  });
}

// Squares that overflow, vanish, or do so for a part of the row or for c alone.
TEST(ReadNorm, HugeAndTinyRows) {
  ForEachTarget([](const std::string&) {
    Rng rng(4);
    for (const Floor floor : kFloors) {
      for (const int64_t D : kWidths) {
        for (const double scale : {1e-42, 1e-30, 1e-19, 1e-13, 1e-12, 1e-9, 1e15, 1e19, 1e25, 3e37}) {
          SCOPED_TRACE(::testing::Message() << "D " << D << " floor " << static_cast<int>(floor) << " scale " << scale);
          const ReadNormShape n = {.H = 2, .T = 4, .D = D};
          Data data(n, floor, rng, scale);
          data.x.Row(0, 0, 1)[D / 2] = 1;
          data.x.Row(0, 1, 2)[D - 1] = std::numeric_limits<float>::max();
          if (floor == Floor::kSoft) data.c[1] = 1e20f;
          RowBuffer y(1, n.H, n.T, D);
          ReadNormForward(data.Forward(y.rows()), 0, n.H);
          ExpectForwardMatches(data, y);
          // Small gradients, so that those of tiny rows are floats: r is up to 1e42 there.
          data.d_y.ForEach([](float& v) { v *= 1e-6f; });
          Gradients gradients(n);
          Backward(data, gradients);
          ExpectBackwardMatches(data, gradients);
        }
      }
    }
  });
}

TEST(ReadNorm, NotFiniteRowsStayAlone) {
  ForEachTarget([](const std::string&) {
    Rng rng(5);
    for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
      const ReadNormShape n = {.H = 1, .T = 3, .D = 37};
      Data data(n, Floor::kSoft, rng);
      RowBuffer before(1, 1, 3, n.D), after = before;
      ReadNormForward(data.Forward(before.rows()), 0, 1);
      data.x.Row(0, 0, 1)[36] = bad;
      ReadNormForward(data.Forward(after.rows()), 0, 1);
      EXPECT_TRUE(std::isnan(after.Row(0, 0, 1)[36]));
      for (const int64_t t : {0, 2})
        EXPECT_TRUE(std::equal(before.Row(0, 0, t), before.Row(0, 0, t) + 37, after.Row(0, 0, t)));
    }
  });
}

TEST(ReadNorm, ReferenceGradientsMatchFiniteDifferences) {
  Rng rng(6);
  for (const Floor floor : kFloors) {
    for (const int64_t D : {1, 2, 7}) {
      const ReadNormShape n = {.B = 1, .H = 2, .T = 3, .D = D};
      DataOf<double> data(n, floor, rng);
      GradientsOf<double> gradients(n);
      ReadNormBackwardReference(data.Backward(gradients.d_x.rows(), gradients.d_gamma.data(), gradients.d_c.data()));
      const auto slope = [&](double& parameter) {  // of <y, d_y>
        constexpr double kStep = 1e-5;
        const auto loss = [&](double value) {
          parameter = value;
          RowBufferOf<double> y(n.B, n.H, n.T, n.D);
          ReadNormForwardReference(data.Forward(y.rows()));
          double sum = 0;
          ForEachRow(n, [&](int64_t b, int64_t h, int64_t t) {
            for (int64_t i = 0; i < D; ++i) sum += y.Row(b, h, t)[i] * data.d_y.Row(b, h, t)[i];
          });
          return sum;
        };
        const double value = parameter;
        const double difference = loss(value + kStep) - loss(value - kStep);
        parameter = value;
        return difference / (2 * kStep);
      };
      ForEachRow(n, [&](int64_t b, int64_t h, int64_t t) {
        const double* x = data.x.Row(b, h, t);
        // The differences err by step^2 / 6 times the third derivative, which is of the order of r^3 |g|.
        double square = 0;
        for (int64_t i = 0; i < D; ++i) square += x[i] * x[i] / static_cast<double>(D);
        const double r = 1 / std::sqrt(square + (data.Floors() != nullptr ? data.c[h] * data.c[h] : kReadNormFloor));
        for (int64_t i = 0; i < D; ++i) {
          ASSERT_NEAR(gradients.d_x.Row(b, h, t)[i], slope(data.x.Row(b, h, t)[i]), 1e-9 * (1 + r * r * r));
        }
      });
      for (int64_t i = 0; i < n.H * D; ++i) ASSERT_NEAR(gradients.d_gamma[i], slope(data.gamma[i]), 1e-9);
      for (int64_t h = 0; h < n.H && floor != Floor::kHard; ++h) ASSERT_NEAR(gradients.d_c[h], slope(data.c[h]), 1e-8);
    }
  }
}

TEST(ReadNorm, SaysWhatIsWrong) {
  Rng rng(7);
  Data data({.B = 1, .H = 2, .T = 3, .D = 4}, Floor::kSoft, rng);
  RowBuffer y(1, 2, 3, 4);
  const auto forward = [&](const auto& change) {
    ReadNormForwardArgs<float> args = data.Forward(y.rows());
    change(args);
    return ValidateReadNorm(args);
  };
  EXPECT_FALSE(forward([](auto& a) { a.shape.D = 0; }).ok());
  EXPECT_FALSE(forward([](auto& a) { a.shape.T = -1; }).ok());
  EXPECT_FALSE(forward([](auto& a) { a.shape.B = int64_t{1} << 40; }).ok());
  EXPECT_FALSE(forward([](auto& a) { a.gamma = nullptr; }).ok());
  EXPECT_FALSE(forward([](auto& a) { a.x = {}; }).ok());
  EXPECT_FALSE(forward([](auto& a) { a.y = {}; }).ok());
  EXPECT_FALSE(forward([&](auto& a) { a.y.data = data.x.rows().data; }).ok());  // in place with strides of its own
  EXPECT_TRUE(forward([](auto& a) { a.shape.T = 0, a.x = {}, a.y = {}; }).ok());
  EXPECT_TRUE(forward([](auto& a) { a.shape.H = 0, a.gamma = nullptr; }).ok());
  Gradients gradients(data.n);
  const auto backward = [&](const auto& change) {
    ReadNormBackwardArgs<float> args =
        data.Backward(gradients.d_x.rows(), gradients.d_gamma.data(), gradients.d_c.data());
    change(args);
    return ValidateReadNormBackward(args);
  };
  EXPECT_TRUE(backward([](auto& a) { a.d_x = {}, a.d_gamma = nullptr, a.d_c = nullptr; }).ok());
  EXPECT_FALSE(backward([](auto& a) { a.d_y = {}; }).ok());
  EXPECT_FALSE(backward([](auto& a) { a.c = nullptr; }).ok());
  EXPECT_FALSE(backward([&](auto& a) { a.d_x.data = data.d_y.rows().data; }).ok());
  EXPECT_DEATH(ReadNormForward(data.Forward(y.rows()), 0, 3), "CHECK failed");
}

}  // namespace
}  // namespace tensorcache
