#include "experiments/report/scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tensorcache::experiments::report {
namespace {

std::vector<std::string> Labels(const std::vector<Tick>& ticks) {
  std::vector<std::string> labels;
  for (const Tick& tick : ticks) labels.push_back(tick.label);
  return labels;
}
using Strings = std::vector<std::string>;

// What holds for every axis, however odd its values.
void ExpectSane(const Axis& axis, const std::vector<double>& values) {
  for (const bool round : {false, true}) {
    const Scale scale = Scale::Fit(axis, values, round);
    ASSERT_TRUE(std::isfinite(scale.low()) && std::isfinite(scale.high()));
    ASSERT_LT(scale.low(), scale.high());
    for (const double value : values) {
      ASSERT_TRUE(std::isfinite(scale.At(value))) << value;
      EXPECT_TRUE(axis.min || axis.max || scale.Contains(value)) << value;
    }
    for (const bool horizontal : {false, true}) {
      for (const double length : {1.0, 200.0, 600.0}) {
        const auto ticks = MakeTicks(scale, {.length = length, .horizontal = horizontal, .preferred = values});
        EXPECT_LT(ticks.size(), 100u);
        for (size_t i = 0; i < ticks.size(); ++i) {
          EXPECT_TRUE(scale.Contains(ticks[i].value)) << ticks[i].value;
          EXPECT_FALSE(ticks[i].label.empty());
          EXPECT_TRUE(i == 0 || ticks[i - 1].value < ticks[i].value) << ticks[i].value;
        }
      }
    }
  }
}

TEST(ScaleTest, LinearTicksAreRound) {
  const Scale scale = Scale::Fit({}, std::vector<double>{4.7, 6.8}, true);
  EXPECT_DOUBLE_EQ(scale.low(), 4.5);
  EXPECT_DOUBLE_EQ(scale.high(), 7);
  EXPECT_EQ(Labels(MakeTicks(scale, {.length = 250, .horizontal = false})),
            (Strings{"4.5", "5.0", "5.5", "6.0", "6.5", "7.0"}));
  EXPECT_DOUBLE_EQ(scale.At(4.5), 0);
  EXPECT_DOUBLE_EQ(scale.At(7), 1);
}

TEST(ScaleTest, BeginsAtZeroWhereThatCostsLittle) {
  EXPECT_EQ(Scale::Fit({}, std::vector<double>{15, 127}, true).low(), 0);
  EXPECT_GT(Scale::Fit({}, std::vector<double>{100, 127}, true).low(), 0);
  EXPECT_LT(Scale::Fit({}, std::vector<double>{-3, 127}, true).low(), -3);
}

TEST(ScaleTest, TicksStandAtTheData) {
  const Scale gaps = Scale::Fit({.min = 20, .max = 52}, {}, false);
  EXPECT_EQ(Labels(MakeTicks(gaps, {.length = 300, .preferred = {48, 24, 36, 24}})), (Strings{"24", "36", "48"}));
  const std::vector<double> sizes = {1, 4, 8, 16, 32, 64};
  const Scale chunks = Scale::Fit({.log = true}, sizes, false);
  EXPECT_EQ(Labels(MakeTicks(chunks, {.length = 300, .preferred = sizes})), (Strings{"1", "4", "8", "16", "32", "64"}));
}

TEST(ScaleTest, PowersOfTwo) {
  std::vector<double> contexts;
  for (double x = 4096; x <= 1 << 20; x *= 2) contexts.push_back(x);
  const Scale scale = Scale::Fit({.log = true}, contexts, false);
  EXPECT_EQ(Labels(MakeTicks(scale, {.length = 600, .preferred = contexts})),
            (Strings{"4K", "8K", "16K", "32K", "64K", "128K", "256K", "512K", "1M"}));
  // Where they do not all fit, every second one stays.
  EXPECT_EQ(Labels(MakeTicks(scale, {.length = 260, .preferred = contexts})),
            (Strings{"4K", "16K", "64K", "256K", "1M"}));
  // Small ones are written out.
  const std::vector<double> gaps = {128, 256, 512, 1024};
  EXPECT_EQ(Labels(MakeTicks(Scale::Fit({.log = true}, gaps, false), {.length = 400, .preferred = gaps})),
            (Strings{"128", "256", "512", "1024"}));
  // A million at their end changes none of the names.
  const std::vector<double> to_million = {4096, 16384, 65536, 131072, 1e6};
  EXPECT_EQ(Labels(MakeTicks(Scale::Fit({.log = true}, to_million, false), {.length = 600, .preferred = to_million})),
            (Strings{"4K", "16K", "64K", "128K", "1M"}));
}

TEST(ScaleTest, PowersOfTenAndBytes) {
  const Scale wide = Scale::Fit({.log = true, .min = 1, .max = 1e6}, {}, true);
  EXPECT_EQ(Labels(MakeTicks(wide, {.length = 300, .horizontal = false})),
            (Strings{"1", "10", "100", "1000", "10K", "100K", "1M"}));
  const Scale near = Scale::Fit({.log = true, .min = 1, .max = 50}, {}, true);
  EXPECT_EQ(Labels(MakeTicks(near, {.length = 300, .horizontal = false})), (Strings{"1", "2", "5", "10", "20", "50"}));
  const Scale bytes = Scale::Fit({.log = true, .min = 1 << 16, .max = 1 << 30}, {}, true);
  EXPECT_EQ(Labels(MakeTicks(bytes, {.length = 120, .horizontal = false, .unit = "bytes"})),
            (Strings{"64 KiB", "1 MiB", "16 MiB", "256 MiB"}));
}

TEST(ScaleTest, LimitsWinWhereTheyMakeSense) {
  const std::vector<double> values = {0.2, 0.9};
  EXPECT_EQ(Scale::Fit({.min = 0, .max = 1.05}, values, true).high(), 1.05);
  EXPECT_LT(Scale::Fit({.min = 2, .max = 1}, values, true).low(), 0.21);
  EXPECT_GT(Scale::Fit({.log = true, .min = -5}, values, true).low(), 0);
  const Scale narrow = Scale::Fit({.min = 0.5, .max = 0.6}, values, true);
  EXPECT_FALSE(narrow.Contains(0.2));
  EXPECT_LT(narrow.At(0.2), 0);
  EXPECT_GT(narrow.At(1e300), 1);
}

TEST(ScaleTest, AnyNumbersAreSane) {
  const double tiny = std::numeric_limits<double>::denorm_min(), huge = std::numeric_limits<double>::max();
  for (const bool log : {false, true}) {
    const Axis axis{.log = log};
    for (const std::vector<double>& values : std::vector<std::vector<double>>{
             {}, {1}, {3, 3, 3}, {1, 1 + 1e-15}, {1e-9, 1e9}, {1e299, 1e300}, {1e-299, 1e300}, {7, 8}}) {
      ExpectSane(axis, values);
    }
    ExpectSane({.log = log, .min = 0, .max = 0}, {1, 2});
    ExpectSane({.log = log, .min = huge, .max = huge}, {1, 2});
    ExpectSane({.log = log, .min = 1, .max = 1.0000001}, {1, 2, tiny, huge});
  }
  for (const std::vector<double>& values : std::vector<std::vector<double>>{
           {0}, {0, 0}, {-5, -5}, {-1e300, 1e300}, {tiny, 2 * tiny}, {0, tiny}, {-1e-7, 1e-7}}) {
    ExpectSane({}, values);
  }
}

}  // namespace
}  // namespace tensorcache::experiments::report
