#include "core/tensor_floats.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace tensorcache {
namespace {

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | fraction << 13);
  if (exponent > 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float tiny = std::ldexp(static_cast<float>(fraction), -24);
  return sign != 0 ? -tiny : tiny;
}

}  // namespace

Status CheckIsFloat(const std::string& name, const TensorRef& tensor) {
  if (tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16) return OkStatus();
  return Unsupported(fmt::format("tensor '{}' is {}; weights must be F32, BF16 or F16", name, DTypeName(tensor.dtype)));
}

void ReadFloats(const TensorRef& tensor, int64_t first, int64_t count, float* out) {
  const std::byte* from = tensor.data.data() + first * DTypeBytes(tensor.dtype);
  if (tensor.dtype == DType::kF32) {
    std::memcpy(out, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + i * 2, sizeof(bits));
    out[i] = tensor.dtype == DType::kBF16 ? std::bit_cast<float>(static_cast<uint32_t>(bits) << 16) : HalfToFloat(bits);
  }
}

Result<std::vector<float>> AllFloats(const std::string& name, const TensorRef& tensor) {
  TC_RETURN_IF_ERROR(CheckIsFloat(name, tensor));
  std::vector<float> values(tensor.data.size() / static_cast<size_t>(DTypeBytes(tensor.dtype)));
  ReadFloats(tensor, 0, static_cast<int64_t>(values.size()), values.data());
  return values;
}

}  // namespace tensorcache
