#include "core/tensor_floats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace tensorcache {
namespace {

TensorRef Of(DType dtype, const std::vector<uint16_t>& bits, const std::vector<int64_t>& shape) {
  return {.dtype = dtype, .shape = shape, .data = std::as_bytes(std::span(bits))};
}

TEST(TensorFloats, ReadsHalves) {
  const std::vector<uint16_t> bits = {0x0000, 0x8000, 0x3C00, 0xC000, 0x0001, 0x03FF, 0x0400, 0x7BFF, 0x7C00, 0xFC00};
  const std::vector<int64_t> shape = {10};
  std::vector<float> out(10);
  const TensorRef tensor = Of(DType::kF16, bits, shape);
  ASSERT_TRUE(CheckIsFloat("x", tensor).ok());
  ReadFloats(tensor, 0, 10, out.data());
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(out, (std::vector<float>{0, -0.0f, 1, -2, 0x1p-24f, 0x1.ff8p-15f, 0x1p-14f, 65504, inf, -inf}));
  EXPECT_TRUE(std::signbit(out[1]));
  const std::vector<uint16_t> nan = {0x7E00};
  ReadFloats(Of(DType::kF16, nan, shape), 0, 1, out.data());
  EXPECT_TRUE(std::isnan(out[0]));
}

TEST(TensorFloats, ReadsBrainFloatsFromTheMiddle) {
  const std::vector<uint16_t> bits = {0, 0x3F80, 0xC040, 0x0001};
  const std::vector<int64_t> shape = {4};
  std::vector<float> out(2);
  ReadFloats(Of(DType::kBF16, bits, shape), 1, 2, out.data());
  EXPECT_EQ(out, (std::vector<float>{1, -3}));
}

TEST(TensorFloats, ReadsAllOfATensor) {
  const std::vector<uint16_t> bits = {0x3F80, 0xC040};
  const std::vector<int64_t> shape = {2, 1};
  EXPECT_EQ(AllFloats("x", Of(DType::kBF16, bits, shape)).value(), (std::vector<float>{1, -3}));
  EXPECT_EQ(AllFloats("x", Of(DType::kI16, bits, shape)).status().code(), StatusCode::kUnsupported);
}

TEST(TensorFloats, RefusesIntegersByName) {
  const std::vector<uint16_t> bits = {0, 0};
  const std::vector<int64_t> shape = {1};
  const Status status = CheckIsFloat("position_ids", Of(DType::kI32, bits, shape));
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("position_ids"), std::string::npos);
}

}  // namespace
}  // namespace tensorcache
