// A short causal convolution over time, one filter for each head and column, added to its input; then, if wanted,
// each row scaled to unit length:
//
//   z_t = x_t + sum_{j < taps} w_j x_{t-j}      (elementwise over the D columns)
//   y_t = z_t      or, with `unit`,      y_t = z_t / sqrt(|z_t|^2 + 1e-12)
//
// Rows before the block, x_t for t < 0, are the `past`: the taps - 1 rows that a caller keeps from block to block.
// Any cut of a sequence into blocks gives the same bits. Without taps z = x.
//
// The unit of work is an item = (batch b, head h) = b * H + h; items are independent, and the caller hands ranges of
// them to threads. Nothing here allocates or starts a thread. Cost: 2 taps D flops a row forward, at most three times
// that backward.
#pragma once

#include <cstdint>

#include "tensorcache/kernels/rows.h"
#include "tensorcache/status.h"

namespace tensorcache {

inline constexpr int64_t kMaxShortConvTaps = 16;

struct ShortConvShape {
  int64_t B = 1;     // batch
  int64_t H = 1;     // heads
  int64_t T = 0;     // tokens of the block; may be 0
  int64_t D = 0;     // width of a row
  int64_t taps = 0;  // 0 .. kMaxShortConvTaps
  bool unit = false;
};

// With `unit`, elements of z up to 1e18 in magnitude: their squares must stay finite.
template <class Real>
struct ShortConvForwardArgs {
  ShortConvShape shape;
  Rows<const Real> x;            // (B, H, T, D)
  const Real* weight = nullptr;  // (H, taps, D), dense; null without taps
  Rows<const Real> past{};       // (B, H, taps - 1, D), oldest first; none: zeros
  Rows<Real> y{};                // (B, H, T, D); without taps it may be `x` itself, else it must not overlap any input
};

// Gradients, given d_y, the gradient of y:
//
//   d_z_t = d_y_t      or, with `unit`,      d_z_t = r_t (d_y_t - y_t (y_t . d_y_t)),  r_t = 1 / sqrt(|z_t|^2 + 1e-12)
//   d_x_t = d_z_t + sum_j w_j d_z_{t+j}      (t + j < T; the past's rows likewise, without the first term)
//   d_w_j = sum_t d_z_t x_{t-j}
//
// Those that have no data are not computed. Whatever is written is overwritten, and overlaps no input.
template <class Real>
struct ShortConvBackwardArgs {
  ShortConvShape shape;
  Rows<const Real> x;
  const Real* weight = nullptr;
  Rows<const Real> past{};
  Rows<const Real> d_y{};  // (B, H, T, D)
  Rows<Real> d_x{};        // (B, H, T, D)
  Rows<Real> d_weight{};   // (B, H, taps, D): each item's own part, for the caller to sum over the batch
  Rows<Real> d_past{};     // (B, H, taps - 1, D)
};

// Sizes, and that the arrays they call for are there; names what is wrong. Strides and extents are the caller's
// promise. Instantiated for float and double, like the references.
template <class Real>
Status ValidateShortConv(const ShortConvForwardArgs<Real>& args);
template <class Real>
Status ValidateShortConvBackward(const ShortConvBackwardArgs<Real>& args);

// Both take validated arguments and work on items [begin_item, end_item) of B * H.
void ShortConvForward(const ShortConvForwardArgs<float>& args, int64_t begin_item, int64_t end_item);
// `scratch` of ShortConvBackwardScratchFloats(shape), O((32 + taps) D), belongs to the calling thread for the
// duration of the call; any alignment, any content.
int64_t ShortConvBackwardScratchFloats(const ShortConvShape& shape);
void ShortConvBackward(const ShortConvBackwardArgs<float>& args, int64_t begin_item, int64_t end_item, float* scratch);

}  // namespace tensorcache
