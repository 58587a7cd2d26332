// The vector exp on every SIMD target: accuracy over its whole range, and the special values.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/exp_test.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "kernels/simd/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {
namespace {

// n must be a multiple of 16.
void ExpAll(const float* x, int64_t n, float* y) {
  const hn::CappedTag<float, 16> d;
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(d))) {
    hn::StoreU(ExpNonPositive(d, hn::LoadU(d, x + i)), d, y + i);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "testing/kernel_testing.h"

namespace tensorcache {
namespace {

HWY_EXPORT(ExpAll);

std::vector<float> Exp(std::vector<float> x) {
  x.resize((x.size() + 15) / 16 * 16, 0.0f);
  std::vector<float> y(x.size());
  HWY_DYNAMIC_DISPATCH(ExpAll)(x.data(), static_cast<int64_t>(x.size()), y.data());
  return y;
}

// The distance from y to the exact value, in units of the last place of the exact value.
double UlpError(float y, double exact) {
  const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
  return std::abs(static_cast<double>(y) - exact) / ulp;
}

TEST(ExpTest, WithinTwoUlp) {
  std::vector<float> x;
  // Every 1009th float from -0 down to the last one with a normal result, and a little above 0.
  for (uint32_t bits = 0x80000000u; std::bit_cast<float>(bits) >= -87.33654f; bits += 1009) {
    x.push_back(std::bit_cast<float>(bits));
  }
  for (int i = 0; i < 1000; ++i) x.push_back(0.001f * static_cast<float>(i));
  testing::ForEachTarget([&](const std::string&) {
    const std::vector<float> y = Exp(x);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, UlpError(y[i], std::exp(static_cast<double>(x[i]))));
    EXPECT_LE(worst, 2.0);
  });
}

TEST(ExpTest, SpecialValues) {
  testing::ForEachTarget([&](const std::string&) {
    using Limits = std::numeric_limits<float>;
    const std::vector<float> y = Exp({-0.0f, 0.0f, -Limits::infinity(), Limits::lowest(), -1e9f, -104.0f, -87.34f,
                                      Limits::quiet_NaN(), -Limits::denorm_min()});
    EXPECT_EQ(y[0], 1.0f);
    EXPECT_EQ(y[1], 1.0f);
    for (int i = 2; i < 7; ++i) EXPECT_EQ(y[static_cast<size_t>(i)], 0.0f) << i;
    EXPECT_TRUE(std::isnan(y[7]));
    EXPECT_EQ(y[8], 1.0f);
  });
}

}  // namespace
}  // namespace tensorcache
#endif  // HWY_ONCE
