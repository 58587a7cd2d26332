#include "tensorcache/kernels/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/rng.h"
#include "kernels/rope/rope_ref.h"
#include "testing/kernel_testing.h"

namespace tensorcache {
namespace {

using testing::ForEachTarget;
using testing::GuardedBuffer;
using testing::RowBuffer;
using testing::WithinNorm;

constexpr double kEps = std::numeric_limits<float>::epsilon();

struct Table {
  Table(int64_t rotary_dims, double base, const std::vector<int64_t>& positions, const RopeScaling& scaling = {})
      : cos(static_cast<int64_t>(positions.size()) * rotary_dims / 2), sin(cos.size()), pairs(rotary_dims / 2) {
    FillRopeTable(MakeRopeFrequencies(rotary_dims, base, scaling).value(), positions, cos.data(), sin.data());
  }
  Rows<const float> cos_rows() const { return {.data = cos.data(), .token = pairs}; }
  Rows<const float> sin_rows() const { return {.data = sin.data(), .token = pairs}; }

  GuardedBuffer cos, sin;
  int64_t pairs;
};

// One unit in the last place of a float near x; for tiny x, that of the smallest normal.
double Ulp(long double x) {
  const float f = std::max(std::abs(static_cast<float>(x)), std::numeric_limits<float>::min());
  return static_cast<double>(std::nextafter(f, 2 * f) - f);
}

constexpr RopeScaling kScalings[] = {
    {},
    {.rope_type = RopeScalingKind::kLinear, .factor = 3},
    {.rope_type = RopeScalingKind::kLlama3, .factor = 8, .original_max_position_embeddings = 8192}};

TEST(RopeTable, MatchesLongDouble) {
  const std::vector<int64_t> positions = {0, 1, 2, 777, 4095, 10'000'003, -10'000'003, int64_t{1} << 31};
  for (const int64_t dims : {2, 32, 80, 128, 256}) {
    const std::vector<double> bases = {10000.0, 500000.0, NtkAwareBase(10000, 8, std::max<int64_t>(dims, 4))};
    for (size_t i = 0; i < bases.size() * std::size(kScalings); ++i) {
      const double base = bases[i % bases.size()];
      const RopeScaling& scaling = kScalings[i / bases.size()];
      const Table table(dims, base, positions, scaling);
      std::vector<float> cos(static_cast<size_t>(table.cos.size())), sin(cos.size());
      FillRopeTableReference(dims, base, positions, cos.data(), sin.data(), scaling);
      for (int64_t k = 0; k < table.cos.size(); ++k) {
        const auto at = static_cast<size_t>(k);
        // The reference's own angle has 64 bits: an error of |position| 2^-62 covers its power and product.
        const double reference_error =
            std::abs(static_cast<double>(positions[at / static_cast<size_t>(table.pairs)])) * 0x1p-62;
        ASSERT_NEAR(table.cos[k], cos[at], Ulp(cos[at]) + reference_error) << k;
        ASSERT_NEAR(table.sin[k], sin[at], Ulp(sin[at]) + reference_error) << k;
      }
      ASSERT_TRUE(table.cos.Intact() && table.sin.Intact());
    }
  }
}

TEST(RopeScaling, LeavesShortWavesAndStretchesLongOnes) {
  const RopeScaling& llama3 = kScalings[2];  // waves of 8192 / 4 tokens and less are left, of 8192 and more stretched
  EXPECT_EQ(RopeScaleOf(llama3, 6.28), 1);
  EXPECT_EQ(RopeScaleOf(llama3, 2048), 1);
  EXPECT_EQ(RopeScaleOf(llama3, 8192), 1.0 / 8);
  EXPECT_EQ(RopeScaleOf(llama3, 1e6), 1.0 / 8);
  EXPECT_DOUBLE_EQ(RopeScaleOf(llama3, 8192 / 2.5), 0.5 / 8 + 0.5);
  EXPECT_EQ(RopeScaleOf(kScalings[1], 5), 1.0 / 3);
  EXPECT_EQ(RopeScaleOf({}, 5), 1);
}

// With base 10^4 and R = 8 the frequencies are 10^-i, so that a position splits exactly into q 10^i + r and the angle
// into q + r / 10^i, whose parts long double turns exactly enough at any size.
TEST(RopeTable, IsExactToTheRoundingAtTwoToTheForty) {
  std::vector<int64_t> positions;
  Rng rng(1);
  for (int i = 0; i < 2000; ++i) positions.push_back((int64_t{1} << 40) - static_cast<int64_t>(rng.Below(1u << 30)));
  const Table table(8, 10000, positions);
  for (size_t t = 0; t < positions.size(); ++t) {
    int64_t power = 1;
    for (int64_t i = 0; i < 4; ++i, power *= 10) {
      const int64_t quotient = positions[t] / power;
      const auto whole = static_cast<long double>(quotient);
      const long double part = static_cast<long double>(positions[t] % power) / static_cast<long double>(power);
      const long double cos = std::cos(whole) * std::cos(part) - std::sin(whole) * std::sin(part);
      const long double sin = std::sin(whole) * std::cos(part) + std::cos(whole) * std::sin(part);
      const int64_t at = static_cast<int64_t>(t) * 4 + i;
      // Half an ulp of rounding, and the 1e-11 of the series.
      ASSERT_NEAR(table.cos[at], static_cast<double>(cos), 0.501 * Ulp(cos) + 1e-15);
      ASSERT_NEAR(table.sin[at], static_cast<double>(sin), 0.501 * Ulp(sin) + 1e-15);
    }
  }
}

TEST(RopeTable, RangeEqualsList) {
  const RopeFrequencies frequencies = MakeRopeFrequencies(64, 10000).value();
  const std::vector<int64_t> positions = {-2, -1, 0, 1, 2};
  const Table list(64, 10000, positions);
  GuardedBuffer cos(5 * 32), sin(5 * 32);
  FillRopeTable(frequencies, -2, 5, cos.data(), sin.data());
  for (int64_t i = 0; i < cos.size(); ++i) {
    ASSERT_EQ(cos[i], list.cos[i]);
    ASSERT_EQ(sin[i], list.sin[i]);
  }
  for (int64_t i = 0; i < 32; ++i) {  // even and odd
    ASSERT_EQ(cos[i], cos[4 * 32 + i]);
    ASSERT_EQ(sin[i], -sin[4 * 32 + i]);
  }
}

TEST(RopeTable, NtkAwareBase) {
  EXPECT_NEAR(NtkAwareBase(10000, 8, 64), 10000 * std::pow(8.0, 64.0 / 62), 1e-6);
  EXPECT_EQ(NtkAwareBase(10000, 1, 64), 10000);
  EXPECT_EQ(NtkAwareBase(10000, 8, 2), 10000);
  // The lowest frequency is divided by the scale: position 8 p has the angle p had.
  const Table before(64, 10000, {1000}), after(64, NtkAwareBase(10000, 8, 64), {8000});
  EXPECT_NEAR(after.sin[31], before.sin[31], 2 * Ulp(before.sin[31]));
  EXPECT_NEAR(after.cos[31], before.cos[31], 2 * Ulp(before.cos[31]));
}

TEST(RopeFrequencies, RejectsBadArguments) {
  EXPECT_FALSE(MakeRopeFrequencies(0, 10000).ok());
  EXPECT_FALSE(MakeRopeFrequencies(7, 10000).ok());
  EXPECT_FALSE(MakeRopeFrequencies(258, 10000).ok());
  EXPECT_FALSE(MakeRopeFrequencies(64, 1.0).ok());
  EXPECT_FALSE(MakeRopeFrequencies(64, -5).ok());
  EXPECT_FALSE(MakeRopeFrequencies(64, std::numeric_limits<double>::quiet_NaN()).ok());
}

struct Shape {
  int64_t batch, heads, tokens, dims, rotary_dims, pad;
};

constexpr Shape kShapes[] = {{1, 1, 1, 2, 2, 0},     {2, 3, 5, 64, 64, 1},   {1, 2, 7, 80, 80, 3},
                             {2, 1, 3, 128, 128, 0}, {1, 2, 2, 256, 256, 5}, {2, 2, 3, 100, 30, 1},
                             {1, 1, 4, 6, 0, 1},     {1, 3, 2, 66, 38, 7}};

std::vector<int64_t> Positions(int64_t tokens) {
  std::vector<int64_t> positions;
  for (int64_t t = 0; t < tokens; ++t) positions.push_back(10'000'000 + 3 * t);
  return positions;
}

RopeArgs Args(const Shape& shape, const Table& table, RopePairing pairing, bool inverse) {
  RopeArgs args;
  args.batch = shape.batch;
  args.heads = shape.heads;
  args.tokens = shape.tokens;
  args.dims = shape.dims;
  args.rotary_dims = shape.rotary_dims;
  args.cos = table.cos_rows();
  args.sin = table.sin_rows();
  args.pairing = pairing;
  args.inverse = inverse;
  return args;
}

void ForEachCase(const std::function<void(const Shape&, const RopeArgs&)>& body) {
  for (const Shape& shape : kShapes) {
    const Table table(std::max<int64_t>(2, shape.rotary_dims), 10000, Positions(shape.tokens));
    for (const RopePairing pairing : {RopePairing::kHalfSplit, RopePairing::kInterleaved}) {
      for (const bool inverse : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "D " << shape.dims << " R " << shape.rotary_dims << " interleaved "
                                          << (pairing == RopePairing::kInterleaved) << " inverse " << inverse);
        body(shape, Args(shape, table, pairing, inverse));
      }
    }
  }
}

TEST(Rope, MatchesReference) {
  ForEachTarget([](const std::string&) {
    Rng rng(2);
    ForEachCase([&](const Shape& shape, RopeArgs args) {
      RowBuffer x(shape.batch, shape.heads, shape.tokens, shape.dims, shape.pad);
      RowBuffer actual(shape.batch, shape.heads, shape.tokens, shape.dims, shape.pad + 2), expected = actual;
      x.FillNormal(rng);
      args.in = x.crows();
      args.out = expected.rows();
      ApplyRopeReference(args);
      args.out = actual.rows();
      ApplyRope(args);
      ASSERT_TRUE(actual.PadsIntact());
      RopeArgs in_place = args;
      in_place.in = x.crows();
      in_place.out = x.rows();
      ApplyRope(in_place);
      ASSERT_TRUE(x.PadsIntact());
      for (int64_t b = 0; b < shape.batch; ++b) {
        for (int64_t h = 0; h < shape.heads; ++h) {
          for (int64_t t = 0; t < shape.tokens; ++t) {
            const float* want = expected.Row(b, h, t);
            // Two products and a sum, each rounded, of values that are at most the largest.
            const double magnitude = 2 * testing::MaxAbs(want, shape.dims);
            ASSERT_TRUE(WithinNorm(actual.Row(b, h, t), want, shape.dims, magnitude, 2));
            for (int64_t d = 0; d < shape.dims; ++d) {
              ASSERT_EQ(x.Row(b, h, t)[d], actual.Row(b, h, t)[d]);
              if (d >= shape.rotary_dims) {
                ASSERT_EQ(actual.Row(b, h, t)[d], want[d]);
              }
            }
          }
        }
      }
    });
  });
}

TEST(Rope, KeepsNormAndInverseUndoes) {
  ForEachTarget([](const std::string&) {
    Rng rng(3);
    ForEachCase([&](const Shape& shape, RopeArgs args) {
      RowBuffer x(shape.batch, shape.heads, shape.tokens, shape.dims, shape.pad), turned = x, back = x;
      x.FillNormal(rng);
      args.in = x.crows();
      args.out = turned.rows();
      ApplyRope(args);
      args.inverse = !args.inverse;
      args.in = turned.crows();
      args.out = back.rows();
      ApplyRope(args);
      for (int64_t b = 0; b < shape.batch; ++b) {
        for (int64_t h = 0; h < shape.heads; ++h) {
          for (int64_t t = 0; t < shape.tokens; ++t) {
            const double norm = testing::Norm2(x.Row(b, h, t), shape.dims);
            // cos^2 + sin^2 is 1 within eps (each is rounded), and each output has three roundings.
            ASSERT_NEAR(testing::Norm2(turned.Row(b, h, t), shape.dims), norm, 3 * kEps * norm);
            ASSERT_TRUE(WithinNorm(back.Row(b, h, t), x.Row(b, h, t), shape.dims,
                                   2 * testing::MaxAbs(x.Row(b, h, t), shape.dims), 4));
          }
        }
      }
    });
  });
}

// q(p) . k(p') depends on p - p' only, also far out.
TEST(Rope, ScoresDependOnDistanceOnly) {
  constexpr int64_t kDims = 64;
  constexpr int64_t kDistance = 77;
  ForEachTarget([](const std::string&) {
    Rng rng(4);
    GuardedBuffer q(kDims), k(kDims);
    q.FillNormal(rng);
    k.FillNormal(rng);
    for (const RopePairing pairing : {RopePairing::kHalfSplit, RopePairing::kInterleaved}) {
      const auto score = [&](int64_t position) {
        const Table table(kDims, 10000, {position, position - kDistance});
        GuardedBuffer turned_q(kDims), turned_k(kDims);
        RopeArgs args = {.in = {.data = q.data()},
                         .out = {.data = turned_q.data()},
                         .tokens = 1,
                         .dims = kDims,
                         .rotary_dims = kDims,
                         .cos = table.cos_rows(),
                         .sin = table.sin_rows(),
                         .pairing = pairing};
        ApplyRope(args);
        args.in.data = k.data();
        args.out.data = turned_k.data();
        args.cos.data += table.pairs;
        args.sin.data += table.pairs;
        ApplyRope(args);
        double sum = 0;
        for (int64_t d = 0; d < kDims; ++d) sum += static_cast<double>(turned_q[d]) * turned_k[d];
        return sum;
      };
      const double expected = score(kDistance);
      // Each turned row is off by at most 3 eps of its norm.
      const double tolerance = 6 * kEps * testing::Norm2(q.data(), kDims) * testing::Norm2(k.data(), kDims);
      for (const int64_t position : {int64_t{1000}, int64_t{10'000'003}, int64_t{1} << 40}) {
        EXPECT_NEAR(score(position), expected, tolerance) << position;
      }
    }
  });
}

// A table row per batch entry: each sequence at its own position.
TEST(Rope, TablesPerBatch) {
  constexpr int64_t kDims = 32;
  Rng rng(5);
  const Table table(kDims, 10000, {5, 900});
  RowBuffer x(2, 3, 1, kDims), y = x, expected = x;
  x.FillNormal(rng);
  RopeArgs args = {.in = x.crows(),
                   .out = y.rows(),
                   .batch = 2,
                   .heads = 3,
                   .tokens = 1,
                   .dims = kDims,
                   .rotary_dims = kDims,
                   .cos = {.data = table.cos.data(), .batch = table.pairs},
                   .sin = {.data = table.sin.data(), .batch = table.pairs}};
  ApplyRope(args);
  args.out = expected.rows();
  ApplyRopeReference(args);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 3; ++h) ASSERT_TRUE(WithinNorm(y.Row(b, h, 0), expected.Row(b, h, 0), kDims, 5, 2));
  }
}

}  // namespace
}  // namespace tensorcache
