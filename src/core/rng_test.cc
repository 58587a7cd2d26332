#include "core/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tensorcache {
namespace {

using Words = std::array<uint32_t, 4>;

// The known answers published with Random123.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, StartsWithTheFirstBlockOfItsStream) {
  Rng rng(0);
  const Words expected = Philox4x32({0, 0, 0, 0}, {0, 0});
  for (const uint32_t word : expected) EXPECT_EQ(rng.NextU32(), word);
  EXPECT_EQ(rng.NextU32(), Philox4x32({1, 0, 0, 0}, {0, 0})[0]);
  Rng other(0x0000000200000001, 0x0000000400000003);
  EXPECT_EQ(other.NextU32(), Philox4x32({0, 0, 3, 4}, {1, 2})[0]);
}

TEST(Rng, SeekContinuesTheStream) {
  Rng rng(7, 3);
  std::vector<uint32_t> words;
  for (int i = 0; i < 100; ++i) words.push_back(rng.NextU32());
  EXPECT_EQ(rng.position(), 100u);
  for (const int at : {99, 0, 41, 40, 4, 3}) {
    rng.Seek(at);
    EXPECT_EQ(rng.NextU32(), words[at]);
    EXPECT_EQ(rng.position(), at + 1u);
  }
  rng.Seek(uint64_t{1} << 40);
  EXPECT_EQ(rng.NextU32(), Philox4x32({0, 1u << 6, 3, 0}, {7, 0})[0]);
}

TEST(Rng, StreamsAndSeedsDiffer) {
  EXPECT_NE(Rng(1, 0).NextU64(), Rng(1, 1).NextU64());
  EXPECT_NE(Rng(1, 0).NextU64(), Rng(2, 0).NextU64());
}

TEST(Rng, UniformHasTheRightMomentsAndRange) {
  Rng rng(1);
  constexpr int n = 200000;
  double sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) {
    const double u = rng.UniformDouble();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
  }
  // Five standard errors of the mean: sqrt(1/12/n) and, for the square, sqrt(4/45/n).
  EXPECT_NEAR(sum / n, 0.5, 5 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(squares / n, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / n));
}

TEST(Rng, NormalHasTheRightMoments) {
  Rng rng(2);
  constexpr int n = 200000;
  double moments[5] = {};
  for (int i = 0; i < n; ++i) {
    const double x = rng.Normal();
    double power = 1;
    for (double& moment : moments) {
      moment += power / n;
      power *= x;
    }
  }
  // Five standard errors: the k-th moment has variance (E x^2k - (E x^k)^2) / n.
  EXPECT_NEAR(moments[1], 0, 5 * std::sqrt(1.0 / n));
  EXPECT_NEAR(moments[2], 1, 5 * std::sqrt(2.0 / n));
  EXPECT_NEAR(moments[3], 0, 5 * std::sqrt(15.0 / n));
  EXPECT_NEAR(moments[4], 3, 5 * std::sqrt(96.0 / n));
  EXPECT_EQ(rng.position() % 4, 0u) << "a normal takes four words";
}

TEST(Rng, BelowIsUniform) {
  Rng rng(3);
  for (const uint64_t n : {1, 2, 3, 10, 17}) {
    constexpr int kDraws = 60000;
    std::vector<int> counts(n);
    for (int i = 0; i < kDraws; ++i) ++counts.at(rng.Below(n));
    const double p = 1.0 / static_cast<double>(n);
    for (const int count : counts) EXPECT_NEAR(count, kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p)) + 1e-9);
  }
}

// With n = 3 * 2^62 a plain remainder would give values below 2^62 twice as often.
TEST(Rng, BelowIsUnbiasedForHugeRanges) {
  Rng rng(4);
  constexpr uint64_t n = uint64_t{3} << 62;
  constexpr int kDraws = 30000;
  int low = 0;
  for (int i = 0; i < kDraws; ++i) {
    const uint64_t draw = rng.Below(n);
    ASSERT_LT(draw, n);
    low += draw < uint64_t{1} << 62;
  }
  EXPECT_NEAR(low, kDraws / 3.0, 5 * std::sqrt(kDraws * 2.0 / 9));
}

}  // namespace
}  // namespace tensorcache
