#include "core/no_throw.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <regex>
#include <vector>

#include "testing/failing_allocations.h"

namespace tensorcache {
namespace {

template <class Body>
std::string MessageOf(const Body& body) {
  const Status status = NoThrow("count the stars", [&] {
    body();
    return OkStatus();
  });
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  return status.message();
}

TEST(NoThrow, GivesWhatTheBodyGives) {
  EXPECT_TRUE(NoThrow("", [] { return OkStatus(); }).ok());
  EXPECT_EQ(NoThrow("", [] { return Corrupt("as it is"); }).message(), "as it is");
  EXPECT_EQ(NoThrow("", []() -> Result<int> { return 3; }).value(), 3);
}

TEST(NoThrow, TurnsExceptionsIntoErrors) {
  const std::string no_memory = "not enough memory to count the stars; free some or ask for less";
  EXPECT_EQ(MessageOf([] { throw std::bad_alloc(); }), no_memory);
  EXPECT_EQ(MessageOf([] { std::vector<int>().reserve(SIZE_MAX); }), no_memory);
  EXPECT_EQ(MessageOf([] { throw std::runtime_error("too bright\nat line 3"); }), "cannot count the stars: too bright");
  // NOLINTNEXTLINE(bugprone-std-exception-baseclass): that is what is tested.
  EXPECT_EQ(MessageOf([] { throw 3; }), "cannot count the stars: an exception without a message");
  EXPECT_EQ(
      MessageOf([] { (void)std::filesystem::file_size("/nowhere"); }).find("cannot count the stars: filesystem error"),
      0);
  EXPECT_EQ(MessageOf([] { std::regex("("); }).find("cannot count the stars: "), 0);
  EXPECT_EQ(NoThrow("x", []() -> Result<int> { throw std::bad_alloc(); }).status().code(), StatusCode::kIoError);
}

TEST(NoThrow, NeedsNoMemoryItself) {
  const auto call = [] {
    return NoThrow("count the stars", [] {
      const std::vector<char> stars(1000);
      return stars.empty() ? Corrupt("no stars") : OkStatus();
    });
  };
  int failures = 0;
  testing::WithFewAllocations(call, [&](const Status& status) {
    if (status.ok()) return;
    EXPECT_EQ(status.code(), StatusCode::kIoError);
    EXPECT_EQ(status.message(), "out of memory");
    ++failures;
  });
  EXPECT_EQ(failures, 1);
}

}  // namespace
}  // namespace tensorcache
