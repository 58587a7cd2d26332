// Activations and gates of feed-forward layers, element by element. Strides count elements.
//
//   y = f(a) b          (b null: y = f(a))
//   da = dy b f'(a)     db = dy f(a)
//
//   SiLU       f(a) = a s(a),                 s(z) = 1 / (1 + exp(-z))          silu(a) b is SwiGLU
//   GELU       f(a) = a Phi(a),               Phi the normal distribution       gelu(a) b is GEGLU
//   GELU tanh  f(a) = a (1 + tanh u) / 2 = a s(2u),   u = sqrt(2/pi) (a + 0.044715 a^3)
#pragma once

#include <cstdint>

#include "tensorcache/choices.h"

namespace tensorcache {

// y may be a or b with the same stride.
struct GateArgs {
  Activation activation = Activation::kSilu;
  int64_t rows = 0;
  int64_t width = 0;
  const float* a = nullptr;  // [rows, width]
  int64_t a_stride = 0;
  const float* b = nullptr;  // [rows, width] or null
  int64_t b_stride = 0;
  float* y = nullptr;  // [rows, width]
  int64_t y_stride = 0;
};

// da and db are overwritten; each may be a, b or dy with the same stride (but not the same as each other).
struct GateBackwardArgs {
  Activation activation = Activation::kSilu;
  int64_t rows = 0;
  int64_t width = 0;
  const float* a = nullptr;
  int64_t a_stride = 0;
  const float* b = nullptr;  // null as in the forward
  int64_t b_stride = 0;
  const float* dy = nullptr;
  int64_t dy_stride = 0;
  float* da = nullptr;
  int64_t da_stride = 0;
  float* db = nullptr;  // null if b is
  int64_t db_stride = 0;
};

void Gate(const GateArgs& args);
void GateBackward(const GateBackwardArgs& args);

}  // namespace tensorcache
