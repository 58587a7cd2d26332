#include "core/process_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace tensorcache {
namespace {

TEST(ProcessMemory, ResidentBytesGrowWithWhatIsTouched) {
  const int64_t before = ResidentBytes();
  if (before == 0) GTEST_SKIP() << "the kernel does not tell";
  constexpr int64_t kBytes = 64 << 20;
  std::vector<char> block(kBytes);
  std::memset(block.data(), 1, block.size());
  EXPECT_NEAR(ResidentBytes() - before, kBytes, kBytes / 8.0);
  EXPECT_EQ(block[kBytes / 2], 1);
}

TEST(ProcessMemory, SomeIsAvailable) { EXPECT_GT(AvailableBytes(), 1 << 20); }

TEST(ProcessMemory, BlasFitsIntoWhatTheLimitLeaves) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const auto limit = [&](rlim_t bytes) {
    const rlimit limits = {bytes, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &limits), 0);
  };
  if (before.rlim_cur == RLIM_INFINITY) {
    EXPECT_EQ(AddressSpaceLeft(), std::numeric_limits<int64_t>::max());
    EXPECT_TRUE(CheckRoomForBlas(1023).ok());
  }
  limit(rlim_t{1} << 40);
  const int64_t mapped = (int64_t{1} << 40) - AddressSpaceLeft();
  if (mapped > int64_t{1} << 38) {
    ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
    GTEST_SKIP() << "a sanitizer maps terabytes";
  }
  EXPECT_GT(mapped, 1 << 20);
  limit(static_cast<rlim_t>(mapped) + (rlim_t{512} << 20));
  const Status one = CheckRoomForBlas(1), many = CheckRoomForBlas(8);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_TRUE(one.ok()) << one.message();
  EXPECT_EQ(many.code(), StatusCode::kIoError);
  EXPECT_NE(many.message().find("1024 MiB"), std::string::npos) << many.message();
}

}  // namespace
}  // namespace tensorcache
