// Small functions of rows of numbers.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace tensorcache::methods {

inline void CopyRow(const float* from, int64_t n, float* to) {
  std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
}

inline float Dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// y = x / |x|; y may be x. The same guard against zero as in training.
inline void UnitLength(const float* x, int64_t n, float* y) {
  const float scale = 1 / std::sqrt(Dot(x, x, n) + 1e-12f);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * scale;
}

}  // namespace tensorcache::methods
