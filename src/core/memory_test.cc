#include "core/memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace tensorcache {
namespace {

TEST(Memory, ResidentBytesGrowWithWhatIsTouched) {
  const int64_t before = ResidentBytes();
  if (before == 0) GTEST_SKIP() << "the kernel does not tell";
  constexpr int64_t kBytes = 64 << 20;
  std::vector<char> block(kBytes);
  std::memset(block.data(), 1, block.size());
  EXPECT_NEAR(ResidentBytes() - before, kBytes, kBytes / 8);
  EXPECT_EQ(block[kBytes / 2], 1);
}

TEST(Memory, SomeIsAvailable) { EXPECT_GT(AvailableBytes(), 1 << 20); }

}  // namespace
}  // namespace tensorcache
