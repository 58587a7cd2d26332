// Rows whose squares leave the range of float, or near it, in double: it holds the square of any float. Plain loops,
// the same bits on every machine.
#pragma once

#include <cstdint>

namespace tensorcache::read_norm {

// What a row needs besides itself. `c` is null for the hard norm.
struct WideRow {
  int64_t D = 0;
  const float* x = nullptr;
  const float* gamma = nullptr;
  const float* c = nullptr;
};

// `y` may be row.x.
void WideForward(const WideRow& row, float* y);

// Adds to d_gamma; both may be null, and d_x may be d_y or row.x. Returns what the row adds to d_c.
double WideBackward(const WideRow& row, const float* d_y, float* d_x, float* d_gamma);

}  // namespace tensorcache::read_norm
