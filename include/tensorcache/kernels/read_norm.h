// The norm of what each head reads from a memory: RMS norm with a gain per head and channel, and a floor under the mean
// square that may be learned.
//
//   y_t = gamma_h h_t,   h_t = r_t x_t,   r_t = 1 / sqrt(mean(x_t^2) + f_h),   f_h = c_h^2, or kReadNormFloor without c
//
// Hard, without c: whatever was read comes out with a mean square of 1, before the gain. Soft, with c: a read that is
// short beside c stays short, x gamma / |c|, so a memory that knows nothing says nothing.
//
// A read of an empty memory is 0 and gives exactly 0. The hard norm's constant keeps the gradient finite there, at most
// 1000 times gamma d_y. Nothing is added to c^2: the soft norm is the formula, and its gradient at a read of 0 is gamma
// d_y / |c|. Where c is 0 too, r is taken as 0: the gradients are 0. The sign of c does not matter.
//
// Gradients, with g = gamma d_y and means over the row:
//
//   d_x = r (g - h mean(g h))      d_gamma = sum_t d_y h      d_c = -c sum_t r^2 D mean(g h)
//
// The backward recomputes r from x: nothing needs to be kept from the forward. All finite x and c are fine: where
// squares leave the range of float, or near it, a row is computed in double, at about a nanosecond a number. Infinities
// and NaN spoil their own row, and the sums of their own item.
//
// The unit of work is an item = (batch b, head h) = b * H + h. A row depends on nothing but itself and its head, and
// sums are over t in order: the same rows however tokens are cut into calls, the same sums however items are cut into
// ranges. Nothing allocates, starts a thread or needs scratch.
#pragma once

#include <cstdint>

#include "tensorcache/kernels/rows.h"
#include "tensorcache/status.h"

namespace tensorcache {

inline constexpr double kReadNormFloor = 1e-6;

struct ReadNormShape {
  int64_t B = 1;  // batch
  int64_t H = 1;  // heads
  int64_t T = 0;  // tokens; may be 0
  int64_t D = 0;  // width of a read
};

template <class Real>
struct ReadNormForwardArgs {
  ReadNormShape shape;
  Rows<const Real> x;           // (B, H, T, D)
  const Real* gamma = nullptr;  // (H, D)
  const Real* c = nullptr;      // (H); null: the hard norm
  Rows<Real> y;                 // (B, H, T, D); may be x itself (same data and strides), else must not overlap it
};

// Every gradient may be null. Those given are overwritten. d_gamma and d_c are those of each item: sum over B for those
// of the parameters.
template <class Real>
struct ReadNormBackwardArgs {
  ReadNormShape shape;
  Rows<const Real> x;  // the forward's input
  const Real* gamma = nullptr;
  const Real* c = nullptr;
  Rows<const Real> d_y;     // (B, H, T, D)
  Rows<Real> d_x;           // (B, H, T, D); may be d_y or x itself (same data and strides), else must not overlap them
  Real* d_gamma = nullptr;  // (B, H, D)
  Real* d_c = nullptr;      // (B, H); only with c
};

// Sizes, and that the arrays they call for are there; names what is wrong. Strides and extents are the caller's
// promise. Instantiated for float and double, like the references.
template <class Real>
Status ValidateReadNorm(const ReadNormForwardArgs<Real>& args);
template <class Real>
Status ValidateReadNormBackward(const ReadNormBackwardArgs<Real>& args);

// Valid arguments, and items [begin, end) of B * H.
void ReadNormForward(const ReadNormForwardArgs<float>& args, int64_t begin, int64_t end);
void ReadNormBackward(const ReadNormBackwardArgs<float>& args, int64_t begin, int64_t end);

}  // namespace tensorcache
