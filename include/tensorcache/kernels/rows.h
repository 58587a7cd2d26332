// Views of the arrays kernels work on: plain pointers and strides, counted in elements.
#pragma once

#include <cstdint>

namespace tensorcache {

// A (batch, head, token) array of rows; the elements of one row are contiguous, everything else is strided. It covers
// (B, H, T, D) and (B, T, H, D) layouts, slices of a fused qkv projection, and, with strides of 0, broadcasts: a scalar per
// head is {.data = p, .head = 1}, one constant is {.data = &c}. Does not own its data.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t batch = 0;  // strides
  int64_t head = 0;
  int64_t token = 0;

  explicit operator bool() const { return data != nullptr; }
  T* At(int64_t b, int64_t h, int64_t t) const { return data + b * batch + h * head + t * token; }
};

}  // namespace tensorcache
