#include "core/ranges.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tensorcache {
namespace {

TEST(Ranges, EndsBelongToARangeAndNotToItsInside) {
  for (const double end : {0.0, 1.0}) {
    EXPECT_TRUE(CheckRange("x", end, 0, 1).ok());
    EXPECT_FALSE(CheckInside("x", end, 0, 1).ok());
  }
  EXPECT_TRUE(CheckInside("x", 0.5, 0, 1).ok());
  EXPECT_FALSE(CheckRange("x", NAN, 0, 1).ok());
  EXPECT_FALSE(CheckInside("x", NAN, 0, 1).ok());
  EXPECT_FALSE(CheckPositive("n", 0, 9).ok());
  EXPECT_TRUE(CheckPositive("n", 9, 9).ok());
  EXPECT_EQ(CheckPositive("n", 10, 9).message(), "n is 10; it must be 1 to 9");
  EXPECT_EQ(CheckRange("x", 1.5, 0, 1).message(), "x is 1.5; it must be 0 to 1");
}

// As doubles these two would be equal.
TEST(Ranges, LargeIntegersAreExact) {
  constexpr int64_t kLarge = int64_t{1} << 60;
  EXPECT_FALSE(CheckRange("n", kLarge + 1, 0, kLarge).ok());
}

}  // namespace
}  // namespace tensorcache
