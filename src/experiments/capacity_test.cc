#include "experiments/capacity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/statistics.h"

namespace tensorcache::experiments {
namespace {

std::vector<uint64_t> Seeds(uint64_t n) {
  std::vector<uint64_t> seeds(n);
  std::iota(seeds.begin(), seeds.end(), uint64_t{0});
  return seeds;
}

const std::vector<CapacityRegime> kAllRegimes = [] {
  std::vector<CapacityRegime> all(kPaperRegimes.begin(), kPaperRegimes.end());
  all.insert(all.end(), kRandomRegimes.begin(), kRandomRegimes.end());
  return all;
}();

// The estimate leaves out what does not grow with D: the oldest write itself (1), the step past the threshold (3/2 on
// average, since the square of an overlap is chi-squared), and the spread of |v_1|, which lengthens short runs more
// than it shortens long ones (about 2). Five writes bound their sum; the rest is sampling.
//
// The published means are over five seeds.
TEST(CapacityTest, AgreesWithTheoryAndWithThePaper) {
  constexpr uint64_t kSeeds = 200;
  for (const int64_t dim : kCapacityDims) {
    for (const CapacityRegime regime : kPaperRegimes) {
      SCOPED_TRACE(std::string(SpecOf(regime).name) + " D=" + std::to_string(dim));
      const CapacityRow row = MeasureCapacityRow(dim, regime, Seeds(kSeeds));
      EXPECT_NEAR(row.mean, ExpectedCapacity(dim, regime) + 2.5, 2.5 + 4 * row.std / std::sqrt(double{kSeeds}));
      EXPECT_NEAR(row.paper_mean, row.mean, 4 * row.std / std::sqrt(5.0));
    }
  }
}

// Mean squares of what is left of a value and of the crosstalk, which are known exactly: only sampling is in between.
TEST(CapacityTest, ReadsAreAsExpected) {
  constexpr uint64_t kSeeds = 1500;
  constexpr int64_t kDim = 12;
  for (const CapacityRegime regime : kRandomRegimes) {
    const CapacitySpec& spec = SpecOf(regime);
    if (spec.slots > 1 || !spec.unit_keys) continue;
    for (const int64_t earlier : {0, 20}) {
      constexpr std::array<int64_t, 4> kLater = {0, 3, 12, 36};
      std::array<std::vector<double>, kLater.size()> left, crosstalk;
      for (const uint64_t seed : Seeds(kSeeds)) {
        CapacityTrial trial(kDim, regime, seed, earlier);
        for (size_t i = 0; i < kLater.size(); ++i) {
          while (trial.writes() <= kLater[i]) trial.WriteNext();
          left[i].push_back(trial.left() * trial.left());
          crosstalk[i].push_back(trial.crosstalk());
        }
      }
      for (size_t i = 0; i < kLater.size(); ++i) {
        SCOPED_TRACE(std::string(spec.name) + " behind " + std::to_string(earlier) + " before " +
                     std::to_string(kLater[i]));
        const CapacityRead expected = ExpectedRead(kDim, regime, static_cast<double>(kLater[i]), earlier);
        // A rounding of floats for each write, beside five standard errors.
        const double rounding = 1e-7 * static_cast<double>(kDim + earlier + kLater[i]) * spec.strength;
        const Spread measured_left = SpreadOf(left[i]), measured = SpreadOf(crosstalk[i]);
        EXPECT_NEAR(measured_left.mean, expected.left_square, 5 * measured_left.standard_error + rounding);
        EXPECT_NEAR(measured.mean, expected.crosstalk, 5 * measured.standard_error + rounding);
      }
    }
  }
}

// As above; here the oldest write itself is not counted. What a slot bears comes true one write in as many as there are
// slots.
TEST(CapacityTest, LaterWritesAgreeWithTheory) {
  for (const CapacityRegime regime : kRandomRegimes) {
    const CapacitySpec& spec = SpecOf(regime);
    for (const int64_t dim : {16, 32}) {
      for (const int64_t earlier : {int64_t{0}, 4 * dim * spec.slots}) {
        SCOPED_TRACE(std::string(spec.name) + " D=" + std::to_string(dim) + " behind " + std::to_string(earlier));
        std::vector<double> later;
        for (const uint64_t seed : Seeds(100)) {
          later.push_back(static_cast<double>(MeasureLaterWrites(dim, regime, seed, earlier)));
        }
        const Spread spread = SpreadOf(later);
        const auto slots = static_cast<double>(spec.slots);
        const double expected = ExpectedLaterWrites(dim, regime, earlier);
        EXPECT_NEAR(spread.mean, expected + 1.5 * slots, 2.5 * slots + 4 * spread.standard_error);
      }
    }
  }
}

TEST(CapacityTest, TheoryHasTheLimitsOfManyDimensions) {
  constexpr int64_t kMany = 1 << 20;
  const auto part = [](CapacityRegime regime, int64_t earlier) {
    return ExpectedLaterWrites(kMany, regime, earlier) / static_cast<double>(kMany);
  };
  EXPECT_NEAR(part(CapacityRegime::kRandom, 0), 1, 1e-6);
  EXPECT_NEAR(part(CapacityRegime::kDelta, 0), std::log((1 + std::sqrt(5)) / 2), 1e-5);
  EXPECT_NEAR(part(CapacityRegime::kDelta, 100 * kMany), std::log(2) / 2, 1e-5);
  EXPECT_NEAR(part(CapacityRegime::kEightSlots, 0), 8, 1e-4);
  EXPECT_EQ(part(CapacityRegime::kRandom, kMany), 0);
  for (const int64_t dim : kCapacityDims) {
    EXPECT_NEAR(ExpectedLaterWrites(dim, CapacityRegime::kDecayed, 0), ExpectedCapacity(dim, CapacityRegime::kDecayed),
                0.005 * static_cast<double>(dim));
  }
}

TEST(CapacityTest, WhatHasNoCrosstalkIsRetrieved) {
  EXPECT_EQ(MeasureRetrieved(16, CapacityRegime::kOrthoPrefix, 1, 16), 1);
  for (const CapacityRegime regime : kAllRegimes) {
    EXPECT_EQ(MeasureRetrieved(8, regime, 1, 1), 1);
    // A matrix of eight rows does not tell a thousand keys apart, nor do eight of them.
    EXPECT_LT(MeasureRetrieved(8, regime, 1, 1000), 0.2) << SpecOf(regime).name;
  }
}

TEST(CapacityTest, SlotsShareThePairs) {
  for (const CapacityRegime regime : {CapacityRegime::kTwoSlots, CapacityRegime::kEightSlots}) {
    const int64_t slots = SpecOf(regime).slots;
    CapacityPairs pairs(64, regime, 3);
    std::vector<int64_t> counts(static_cast<size_t>(slots));
    for (int i = 0; i < 1000; ++i) {
      pairs.Next();
      const int64_t slot = pairs.SlotOf(pairs.key());
      ASSERT_GE(slot, 0);
      ASSERT_LT(slot, slots);
      ++counts[static_cast<size_t>(slot)];
    }
    for (const int64_t count : counts) EXPECT_GT(count, 1000 / slots / 4);
  }
}

TEST(CapacityTest, AFunctionOfTheSeed) {
  for (const CapacityRegime regime : kAllRegimes) {
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
    for (const CapacityRegime regime : kAllRegimes) {
      CapacityTrial trial(dim, regime, 1);
      // k.k is 1 within D roundings of the key's elements.
      const double rounding = 1e-6 * std::sqrt(static_cast<double>(dim));
      EXPECT_LT(trial.WriteNext(), rounding) << dim;
      if (!SpecOf(regime).unit_keys) continue;
      EXPECT_NEAR(trial.left(), SpecOf(regime).strength, rounding);
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
