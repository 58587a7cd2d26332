#include "core/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tensorcache {
namespace {

TEST(Median, IsTheMiddleOne) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_EQ(Median({3}), 3);
  EXPECT_EQ(Median({5, 1, 3}), 3);
  EXPECT_EQ(Median({4, 1, 3, 2}), 3);
}

TEST(Spread, OfKnownNumbers) {
  const std::vector<double> a = {1, 2, 3, 4}, b = {2, 4, 3, 7};
  const Spread spread = SpreadOf(a);
  EXPECT_DOUBLE_EQ(spread.mean, 2.5);
  EXPECT_DOUBLE_EQ(spread.std, std::sqrt(5.0 / 3));
  EXPECT_DOUBLE_EQ(spread.standard_error, std::sqrt(5.0 / 3) / 2);
  const Spread difference = PairedDifference(a, b);  // 1, 2, 0, 3
  EXPECT_DOUBLE_EQ(difference.mean, 1.5);
  EXPECT_DOUBLE_EQ(difference.std, std::sqrt(5.0 / 3));
  EXPECT_EQ(SpreadOf(std::vector<double>{3}).std, 0);
}

}  // namespace
}  // namespace tensorcache
