// Normalisation of rows. Strides count elements; rows are contiguous inside.
//
//   LayerNorm:  h = (x - mean x) r,  r = 1 / sqrt(var x + eps),      y = h weight + bias
//   RMSNorm:    h = x r,             r = 1 / sqrt(mean x^2 + eps),   y = h weight
//
// Their gradients, with g = dy weight (means over the row):
//
//   LayerNorm:  dx = r (g - mean g - h mean(g h))      dweight += dy h     dbias += dy
//   RMSNorm:    dx = r (g - h mean(g h))               dweight += dy h
//
// The backward recomputes the mean and r from x: nothing needs to be kept from the forward.
#pragma once

#include <cstdint>

namespace tensorcache {

struct NormArgs {
  int64_t rows = 0;
  int64_t width = 0;
  const float* x = nullptr;  // [rows, width]
  int64_t x_stride = 0;
  const float* weight = nullptr;  // [width]
  const float* bias = nullptr;    // [width], LayerNorm only; null: none
  float eps = 1e-5f;
  float* y = nullptr;  // [rows, width]; may be x with the same stride
  int64_t y_stride = 0;
};

// dweight and dbias are added to, row by row in order: the caller clears them first, and gives each of its threads its
// own.
struct NormBackwardArgs {
  int64_t rows = 0;
  int64_t width = 0;
  const float* x = nullptr;  // the forward's input
  int64_t x_stride = 0;
  const float* weight = nullptr;
  float eps = 1e-5f;
  const float* dy = nullptr;
  int64_t dy_stride = 0;
  float* dx = nullptr;  // overwritten; may be x or dy with the same stride
  int64_t dx_stride = 0;
  float* dweight = nullptr;  // [width], null: not wanted
  float* dbias = nullptr;    // [width], LayerNorm only, null: not wanted
};

// Inputs up to 1e18 in magnitude: their squares must stay finite.
void LayerNorm(const NormArgs& args);
void RmsNorm(const NormArgs& args);
void LayerNormBackward(const NormBackwardArgs& args);
void RmsNormBackward(const NormBackwardArgs& args);

}  // namespace tensorcache
