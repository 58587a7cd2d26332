#include "experiments/capacity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace tensorcache::experiments {
namespace {

std::vector<uint64_t> Seeds(uint64_t n) {
  std::vector<uint64_t> seeds(n);
  std::iota(seeds.begin(), seeds.end(), uint64_t{0});
  return seeds;
}

// The estimate leaves out what does not grow with D: the oldest write itself (1), the step past the threshold (3/2 on
// average, since the square of an overlap is chi-squared), and the spread of |v_1|, which lengthens short runs more
// than it shortens long ones (about 2). Five writes bound their sum; the rest is sampling.
//
// The published means are over five seeds.
TEST(CapacityTest, AgreesWithTheoryAndWithThePaper) {
  constexpr uint64_t kSeeds = 200;
  for (const int64_t dim : kCapacityDims) {
    for (const CapacityRegime regime : kCapacityRegimes) {
      SCOPED_TRACE(std::string(CapacityRegimeName(regime)) + " D=" + std::to_string(dim));
      const CapacityRow row = MeasureCapacityRow(dim, regime, Seeds(kSeeds));
      EXPECT_NEAR(row.mean, ExpectedCapacity(dim, regime) + 2.5, 2.5 + 4 * row.std / std::sqrt(double{kSeeds}));
      EXPECT_NEAR(row.paper_mean, row.mean, 4 * row.std / std::sqrt(5.0));
    }
  }
}

TEST(CapacityTest, AFunctionOfTheSeed) {
  for (const CapacityRegime regime : kCapacityRegimes) {
    EXPECT_EQ(MeasureCapacity(32, regime, 7), MeasureCapacity(32, regime, 7));
    CapacityTrial a(32, regime, 7);
    CapacityTrial b(32, regime, 7);
    CapacityTrial other(32, regime, 8);
    a.WriteNext();
    b.WriteNext();
    other.WriteNext();
    const double second = a.WriteNext();
    EXPECT_EQ(second, b.WriteNext());
    if (regime != CapacityRegime::kOrthoPrefix) {
      EXPECT_NE(second, other.WriteNext());
    }
  }
}

TEST(CapacityTest, OneWriteIsReadBackExactly) {
  for (const int64_t dim : {1, 3, 16, 80, 128}) {
    for (const CapacityRegime regime : kCapacityRegimes) {
      CapacityTrial trial(dim, regime, 1);
      // k.k is 1 within D roundings of the key's elements.
      EXPECT_LT(trial.WriteNext(), 1e-6 * std::sqrt(static_cast<double>(dim))) << dim;
    }
  }
}

TEST(CapacityTest, OrthonormalPrefixIsOrthonormal) {
  for (const int64_t dim : {1, 2, 16, 128}) {
    Rng rng(3);
    const std::vector<float> rows = RandomOrthonormalRows(dim, rng);
    ASSERT_EQ(static_cast<int64_t>(rows.size()), dim * dim);
    for (int64_t i = 0; i < dim; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        double dot = 0;
        for (int64_t d = 0; d < dim; ++d) dot += static_cast<double>(rows[i * dim + d]) * rows[j * dim + d];
        EXPECT_NEAR(dot, i == j ? 1 : 0, 1e-6) << i << " " << j << " of " << dim;
      }
    }
  }
}

TEST(CapacityTest, OrthonormalPrefixLosesNothing) {
  for (const int64_t dim : kCapacityDims) {
    for (const uint64_t seed : Seeds(20)) {
      CapacityTrial trial(dim, CapacityRegime::kOrthoPrefix, seed);
      for (int64_t i = 0; i < dim; ++i) EXPECT_LT(trial.WriteNext(), 1e-5) << "write " << i << " D=" << dim;
      EXPECT_GT(MeasureCapacity(dim, CapacityRegime::kOrthoPrefix, seed), dim);
    }
  }
}

}  // namespace
}  // namespace tensorcache::experiments
