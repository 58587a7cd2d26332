#include "tensorcache/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace tensorcache {
namespace {

Result<int> Half(int x) {
  if (x % 2 != 0) return InvalidArgument("odd");
  return x / 2;
}

Result<int> Quarter(int x) {
  TC_ASSIGN_OR_RETURN(const int half, Half(x));
  TC_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

Status CheckQuarter(int x) {
  TC_RETURN_IF_ERROR(Quarter(x).status());
  return OkStatus();
}

TEST(Status, CarriesCodeAndMessage) {
  EXPECT_TRUE(OkStatus().ok());
  const Status status = Corrupt("bad");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(status.message(), "bad");
  EXPECT_EQ(StatusCodeName(StatusCode::kNotFound), "not found");
}

TEST(Result, MacrosPassErrorsOn) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
  EXPECT_TRUE(CheckQuarter(8).ok());
  EXPECT_EQ(CheckQuarter(6).code(), StatusCode::kInvalidArgument);
}

TEST(Result, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(3));
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 3);
}

TEST(Result, AnOkStatusIsNotAValue) {
  const Result<int> result = OkStatus();
  EXPECT_FALSE(result.ok());
  EXPECT_FALSE(result.status().ok());
}

TEST(ResultDeathTest, ReadingAnErrorsValueAborts) {
  const Result<int> result = NotFound("nothing here");
  EXPECT_DEATH(static_cast<void>(result.value()), "nothing here");
}

}  // namespace
}  // namespace tensorcache
