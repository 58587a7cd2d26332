#include <algorithm>
#include <bit>
#include <cmath>

#include "core/check.h"
#include "tensorcache/kernels/matmul.h"

namespace tensorcache {

uint16_t Fp32ToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((bits >> 16) | 0x40);  // a quiet NaN
  // Adds half of the last kept bit, or just below it if that bit is 0: ties go to even.
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

float Bf16ToFp32(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

void Fp32ToBf16(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = Fp32ToBf16(x[i]);
}

void Bf16ToFp32(const uint16_t* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = Bf16ToFp32(x[i]);
}

Status QuantizeInt8(const float* x, int64_t in, int64_t group, int8_t* data, float* scales) {
  TC_CHECK(group > 0 && group % 32 == 0);
  for (int64_t begin = 0; begin < in; begin += group) {
    const int64_t end = std::min(in, begin + group);
    float largest = 0;
    for (int64_t i = begin; i < end; ++i) {
      if (!std::isfinite(x[i])) return InvalidArgument("a weight that is not finite cannot be quantised to int8");
      largest = std::max(largest, std::abs(x[i]));
    }
    const float scale = largest / 127;
    scales[begin / group] = scale;
    for (int64_t i = begin; i < end; ++i) {
      // A subnormal scale is itself rounded, so that the quotient can pass 127.
      const double steps = scale > 0 ? std::nearbyint(static_cast<double>(x[i]) / scale) : 0.0;
      data[i] = static_cast<int8_t>(std::clamp(steps, -127.0, 127.0));
    }
  }
  return OkStatus();
}

}  // namespace tensorcache
