#include "core/cpu.h"

#include <gtest/gtest.h>

namespace tensorcache {
namespace {

TEST(Cpu, NamesTheCpuAndAtLeastOneTarget) {
  const std::string text = CpuFeatures();
  const size_t open = text.find(" (");
  ASSERT_NE(open, text.npos) << text;
  EXPECT_GT(open, 0u);
  EXPECT_GT(text.size(), open + 3) << text;
  EXPECT_EQ(text.back(), ')');
}

}  // namespace
}  // namespace tensorcache
