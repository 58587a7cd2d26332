#include "tensorcache/kernels/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/rng.h"
#include "kernels/matmul/matmul_ref.h"
#include "testing/kernel_testing.h"

namespace tensorcache {
namespace {

using testing::ForEachTarget;
using testing::GuardedBuffer;
using testing::WithinNorm;

// One random matrix [out, in] in all three storages, with padded rows. The buffers end exactly at the last element
// used, so that a sanitizer sees any read past it.
struct Matrix {
  Matrix(int64_t out, int64_t in, int64_t pad, int64_t group, Rng& rng)
      : out(out), in(in), stride(in + pad), groups(Int8Groups(in, group)) {
    const int64_t size = out == 0 ? 0 : (out - 1) * stride + in;
    const int64_t scale_size = out == 0 ? 0 : (out - 1) * (groups + 1) + groups;
    fp32_data = std::make_unique<float[]>(size);
    bf16_data = std::make_unique<uint16_t[]>(size);
    int8_data = std::make_unique<int8_t[]>(size);
    scales = std::make_unique<float[]>(scale_size);
    for (int64_t i = 0; i < size; ++i) fp32_data[i] = static_cast<float>(rng.Normal());
    Fp32ToBf16(fp32_data.get(), size, bf16_data.get());
    for (int64_t o = 0; o < out; ++o) {
      EXPECT_TRUE(QuantizeInt8(fp32_data.get() + o * stride, in, group, int8_data.get() + o * stride,
                               scales.get() + o * (groups + 1))
                      .ok());
    }
    fp32 = {.data = fp32_data.get(), .stride = stride};
    bf16 = {.data = bf16_data.get(), .stride = stride};
    int8 = {
        .data = int8_data.get(), .stride = stride, .scales = scales.get(), .scale_stride = groups + 1, .group = group};
  }

  int64_t out, in, stride, groups;
  std::unique_ptr<float[]> fp32_data, scales;
  std::unique_ptr<uint16_t[]> bf16_data;
  std::unique_ptr<int8_t[]> int8_data;
  Fp32Weights fp32;
  Bf16Weights bf16;
  Int8Weights int8;
};

// Rounding errors of a float sum of `in` products: each at most eps/2 of sum_i |x_i W_i| <= |x| |W|, with signs that
// do not conspire, so that sqrt(in) of them add up. The constant covers the scales and the sum over lanes.
double Ulps(int64_t in) { return std::sqrt(static_cast<double>(in)) + 4; }

template <class Weights, class Run>
void ExpectMatchesReference(const Weights& weights, const Matrix& matrix, int64_t n, Rng& rng, const Run& run) {
  const int64_t x_stride = matrix.in + 3;
  const int64_t y_stride = matrix.out + 5;
  GuardedBuffer x(n * x_stride), actual(n * y_stride), expected(n * y_stride);
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t i = 0; i < matrix.in; ++i) x[t * x_stride + i] = static_cast<float>(rng.Normal());
  }
  LinearArgs args = {.x = x.data(),
                     .x_stride = x_stride,
                     .y = expected.data(),
                     .y_stride = y_stride,
                     .n = n,
                     .in = matrix.in,
                     .begin = 0,
                     .end = matrix.out};
  LinearReference(weights, args);
  args.y = actual.data();
  run(args);
  ASSERT_TRUE(actual.Intact());
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t o = 0; o < matrix.out; ++o) {
      const double magnitude = testing::Norm2(x.data() + t * x_stride, matrix.in) *
                               testing::Norm2(matrix.fp32.data + o * matrix.stride, matrix.in);
      ASSERT_TRUE(WithinNorm(&actual[t * y_stride + o], &expected[t * y_stride + o], 1, magnitude, Ulps(matrix.in)))
          << "t " << t << " o " << o;
    }
    for (int64_t o = matrix.out; o < y_stride; ++o) ASSERT_TRUE(std::isnan(actual[t * y_stride + o]));
  }
}

TEST(LinearSmall, MatchesReference) {
  ForEachTarget([](const std::string&) {
    Rng rng(1);
    for (const int64_t n : {1, 2, 3, 4, 5, 7, 8, 16, 31, 32}) {
      for (const auto& [out, in, group] : {std::array<int64_t, 3>{1, 1, 32},
                                           {3, 15, 32},
                                           {5, 31, 64},
                                           {4, 32, 32},
                                           {7, 33, 32},
                                           {2, 64, 32},
                                           {9, 100, 64},
                                           {6, 257, 128},
                                           {11, 768, 96},
                                           {35, 2100, 64}}) {
        SCOPED_TRACE(::testing::Message() << "n " << n << " out " << out << " in " << in << " group " << group);
        const Matrix matrix(out, in, 7, group, rng);
        ExpectMatchesReference(matrix.fp32, matrix, n, rng, [&](const LinearArgs& a) { LinearSmall(matrix.fp32, a); });
        ExpectMatchesReference(matrix.bf16, matrix, n, rng, [&](const LinearArgs& a) { LinearSmall(matrix.bf16, a); });
        ExpectMatchesReference(matrix.int8, matrix, n, rng, [&](const LinearArgs& a) { LinearSmall(matrix.int8, a); });
      }
    }
  });
}

// y of all rows and tokens at once, against y of every range and of every token alone: the same bits.
template <class Weights>
void ExpectSplitInvariant(const Weights& weights, int64_t out, int64_t in, Rng& rng) {
  constexpr int64_t kTokens = 13;
  GuardedBuffer x(kTokens * in), whole(kTokens * out), parts(kTokens * out), alone(kTokens * out);
  x.FillNormal(rng);
  LinearArgs args = {.x = x.data(),
                     .x_stride = in,
                     .y = whole.data(),
                     .y_stride = out,
                     .n = kTokens,
                     .in = in,
                     .begin = 0,
                     .end = out};
  LinearSmall(weights, args);
  args.y = parts.data();
  for (int64_t begin = 0; begin < out;) {
    const int64_t end = std::min(out, begin + 1 + static_cast<int64_t>(rng.Below(5)));
    args.begin = begin;
    args.end = end;
    LinearSmall(weights, args);
    begin = end;
  }
  for (int64_t t = 0; t < kTokens; ++t) {
    LinearSmall(weights, {.x = x.data() + t * in,
                          .x_stride = in,
                          .y = alone.data() + t * out,
                          .y_stride = out,
                          .n = 1,
                          .in = in,
                          .begin = 0,
                          .end = out});
  }
  const size_t bytes = static_cast<size_t>(whole.size()) * sizeof(float);
  EXPECT_EQ(std::memcmp(whole.data(), parts.data(), bytes), 0);
  EXPECT_EQ(std::memcmp(whole.data(), alone.data(), bytes), 0);
}

TEST(LinearSmall, DoesNotDependOnSplitOrBatch) {
  ForEachTarget([](const std::string&) {
    Rng rng(2);
    for (const int64_t in : {37, 300}) {
      const Matrix matrix(29, in, 1, 32, rng);
      ExpectSplitInvariant(matrix.fp32, matrix.out, in, rng);
      ExpectSplitInvariant(matrix.bf16, matrix.out, in, rng);
      ExpectSplitInvariant(matrix.int8, matrix.out, in, rng);
    }
  });
}

TEST(LinearSmall, EmptyShapes) {
  ForEachTarget([](const std::string&) {
    Rng rng(3);
    const Matrix matrix(3, 0, 1, 32, rng);
    GuardedBuffer y(6);
    const float x = 0;
    const LinearArgs args = {
        .x = &x, .x_stride = 0, .y = y.data(), .y_stride = 3, .n = 2, .in = 0, .begin = 0, .end = 3};
    LinearSmall(matrix.int8, args);
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(y[i], 0.0f);
    y.Poison();
    LinearSmall(matrix.fp32, args);
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(y[i], 0.0f);
    y.Poison();
    LinearArgs none = args;
    none.n = 0;
    LinearSmall(matrix.bf16, none);
    none = args;
    none.end = none.begin;
    LinearSmall(matrix.bf16, none);
    for (int64_t i = 0; i < 6; ++i) EXPECT_TRUE(std::isnan(y[i]));
  });
}

TEST(Linear, LargeBatchesMatchReference) {
  ForEachTarget([](const std::string&) {
    Rng rng(4);
    for (const int64_t n : {1, 33, 50}) {
      const Matrix matrix(kLinearRowBlock + 22, 131, 3, 64, rng);
      ASSERT_EQ(LinearScratchSize(n, matrix.in), n <= kSmallBatch ? 0 : kLinearRowBlock * matrix.in);
      GuardedBuffer scratch(LinearScratchSize(n, matrix.in));
      ExpectMatchesReference(matrix.fp32, matrix, n, rng, [&](const LinearArgs& a) { Linear(matrix.fp32, a); });
      ExpectMatchesReference(matrix.bf16, matrix, n, rng,
                             [&](const LinearArgs& a) { Linear(matrix.bf16, a, scratch.data()); });
      scratch.Poison();
      ExpectMatchesReference(matrix.int8, matrix, n, rng,
                             [&](const LinearArgs& a) { Linear(matrix.int8, a, scratch.data()); });
      EXPECT_TRUE(scratch.Intact());
    }
  });
}

TEST(Linear, LargeBatchesDoNotDependOnBlockAlignedSplit) {
  Rng rng(5);
  constexpr int64_t kTokens = 40;
  const int64_t out = 3 * kLinearRowBlock + 17;
  const Matrix matrix(out, 200, 0, 32, rng);
  GuardedBuffer x(kTokens * matrix.in), whole(kTokens * out), parts(kTokens * out);
  GuardedBuffer scratch(LinearScratchSize(kTokens, matrix.in));
  x.FillNormal(rng);
  LinearArgs args = {.x = x.data(),
                     .x_stride = matrix.in,
                     .y = whole.data(),
                     .y_stride = out,
                     .n = kTokens,
                     .in = matrix.in,
                     .begin = 0,
                     .end = out};
  Linear(matrix.int8, args, scratch.data());
  args.y = parts.data();
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{2 * kLinearRowBlock, out}, {0, 2 * kLinearRowBlock}}) {
    args.begin = begin;
    args.end = end;
    Linear(matrix.int8, args, scratch.data());
  }
  EXPECT_EQ(std::memcmp(whole.data(), parts.data(), static_cast<size_t>(kTokens * out) * sizeof(float)), 0);
}

TEST(Gemm, MatchesReference) {
  Rng rng(6);
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const float beta : {0.0f, 0.5f}) {
        const int64_t m = 13, n = 21, k = 37;
        const int64_t a_stride = (transpose_a ? m : k) + 3, b_stride = (transpose_b ? k : n) + 1, c_stride = n + 5;
        GuardedBuffer a((transpose_a ? k : m) * a_stride), b((transpose_b ? n : k) * b_stride);
        GuardedBuffer actual(m * c_stride), expected(m * c_stride);
        a.FillNormal(rng);
        b.FillNormal(rng);
        if (beta != 0) {
          actual.FillNormal(rng);
          std::copy_n(actual.data(), actual.size(), expected.data());
        }
        GemmArgs args = {.transpose_a = transpose_a,
                         .transpose_b = transpose_b,
                         .m = m,
                         .k = k,
                         .alpha = 1.5f,
                         .a = a.data(),
                         .a_stride = a_stride,
                         .b = b.data(),
                         .b_stride = b_stride,
                         .beta = beta,
                         .c = expected.data(),
                         .c_stride = c_stride,
                         .begin = 2,
                         .end = n - 1};
        GemmReference(args);
        args.c = actual.data();
        Gemm(args);
        ASSERT_TRUE(actual.Intact());
        // A row of A and a column of B have norms near sqrt(k).
        const double magnitude = args.alpha * 2 * static_cast<double>(k) + beta * 3;
        for (int64_t row = 0; row < m; ++row) {
          const int64_t at = row * c_stride + 2;
          ASSERT_TRUE(WithinNorm(&actual[at], &expected[at], n - 3, magnitude, Ulps(k)));
          ASSERT_EQ(std::isnan(actual[row * c_stride + 1]), beta == 0);
          ASSERT_EQ(std::isnan(actual[row * c_stride + n - 1]), beta == 0);
        }
      }
    }
  }
}

TEST(Gemm, EmptyShapes) {
  float c[2] = {7, 7};
  Gemm({.m = 0, .k = 3, .c = c, .c_stride = 2, .begin = 0, .end = 2});
  Gemm({.m = 1, .k = 3, .c = c, .c_stride = 2, .begin = 1, .end = 1});
  EXPECT_EQ(c[0], 7.0f);
  const float ab[2] = {1, 1};
  Gemm({.m = 1, .k = 0, .a = ab, .a_stride = 1, .b = ab, .b_stride = 2, .c = c, .c_stride = 2, .begin = 0, .end = 2});
  EXPECT_EQ(c[0], 0.0f);
  EXPECT_EQ(c[1], 0.0f);
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(Fp32ToBf16(1.0f), 0x3F80);
  EXPECT_EQ(Fp32ToBf16(-2.0f), 0xC000);
  EXPECT_EQ(Fp32ToBf16(1.0f + 1.0f / 256), 0x3F80);    // a tie, down to even
  EXPECT_EQ(Fp32ToBf16(1.0f + 3.0f / 256), 0x3F82);    // a tie, up to even
  EXPECT_EQ(Fp32ToBf16(1.0f + 1.001f / 256), 0x3F81);  // just above a tie
  EXPECT_EQ(Fp32ToBf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(Fp32ToBf16(-std::numeric_limits<float>::infinity()), 0xFF80);
  EXPECT_TRUE(std::isnan(Bf16ToFp32(Fp32ToBf16(std::numeric_limits<float>::quiet_NaN()))));
  // A NaN whose payload lies only in the bits that are cut.
  EXPECT_TRUE(std::isnan(Bf16ToFp32(Fp32ToBf16(std::bit_cast<float>(0x7F800001u)))));
  EXPECT_EQ(Fp32ToBf16(-0.0f), 0x8000);
}

TEST(Bf16, RoundTripError) {
  Rng rng(7);
  for (int i = 0; i < 100000; ++i) {
    const float x = static_cast<float>(rng.Normal() * std::exp(10 * rng.Normal()));
    ASSERT_LE(std::abs(Bf16ToFp32(Fp32ToBf16(x)) - x), std::abs(x) / 256) << x;
  }
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = Bf16ToFp32(static_cast<uint16_t>(bits));
    if (!std::isnan(x)) {
      ASSERT_EQ(Fp32ToBf16(x), bits);
    }
  }
}

// Row `row` by the definition.
void Dequantize(const Int8Weights& w, int64_t row, int64_t in, float* out) {
  for (int64_t i = 0; i < in; ++i) {
    out[i] = static_cast<float>(w.data[row * w.stride + i]) * w.scales[row * w.scale_stride + i / w.group];
  }
}

TEST(Int8, RoundTripError) {
  Rng rng(8);
  for (const int64_t in : {1, 31, 32, 33, 64, 100}) {
    for (const double size : {1.0, 1e-30, 1e30}) {
      const int64_t groups = Int8Groups(in, 32);
      std::vector<float> x(static_cast<size_t>(in)), back(static_cast<size_t>(in)), scales(static_cast<size_t>(groups));
      std::vector<int8_t> data(static_cast<size_t>(in));
      for (float& v : x) v = static_cast<float>(rng.Normal() * size);
      ASSERT_TRUE(QuantizeInt8(x.data(), in, 32, data.data(), scales.data()).ok());
      Dequantize({.data = data.data(), .scales = scales.data(), .group = 32}, 0, in, back.data());
      for (int64_t i = 0; i < in; ++i) {
        // Half a step; the step and the product are each rounded once.
        const auto at = static_cast<size_t>(i);
        const double step = scales[at / 32];
        const double slack = 2 * std::numeric_limits<float>::epsilon() * std::abs(x[at]);
        ASSERT_LE(std::abs(static_cast<double>(back[at]) - x[at]), step / 2 + slack);
        ASSERT_GE(data[at], -127);
      }
    }
  }
}

TEST(Int8, ZerosTinyAndBadValues) {
  float x[64] = {};
  x[32] = 1e-45f;  // the smallest subnormal: its scale underflows to 0
  x[33] = -1e-45f;
  int8_t data[64];
  float scales[2];
  ASSERT_TRUE(QuantizeInt8(x, 64, 32, data, scales).ok());
  EXPECT_EQ(scales[0], 0.0f);
  for (const int8_t q : data) EXPECT_EQ(q, 0);
  x[40] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(QuantizeInt8(x, 64, 32, data, scales).code(), StatusCode::kInvalidArgument);
  x[40] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(QuantizeInt8(x, 64, 32, data, scales).code(), StatusCode::kInvalidArgument);
}

TEST(DequantizeRows, MatchesScalar) {
  ForEachTarget([](const std::string&) {
    Rng rng(9);
    for (const int64_t in : {1, 47, 200}) {
      const Matrix matrix(5, in, 2, 64, rng);
      GuardedBuffer rows(3 * in);
      std::vector<float> expected(static_cast<size_t>(in));
      DequantizeRows(matrix.bf16, in, 1, 4, rows.data());
      for (int64_t r = 0; r < 3; ++r) {
        Bf16ToFp32(matrix.bf16.data + (r + 1) * matrix.stride, in, expected.data());
        ASSERT_EQ(std::memcmp(rows.data() + r * in, expected.data(), static_cast<size_t>(in) * sizeof(float)), 0);
      }
      rows.Poison();
      DequantizeRows(matrix.int8, in, 1, 4, rows.data());
      for (int64_t r = 0; r < 3; ++r) {
        Dequantize(matrix.int8, r + 1, in, expected.data());
        ASSERT_EQ(std::memcmp(rows.data() + r * in, expected.data(), static_cast<size_t>(in) * sizeof(float)), 0);
      }
      ASSERT_TRUE(rows.Intact());
    }
  });
}

}  // namespace
}  // namespace tensorcache
