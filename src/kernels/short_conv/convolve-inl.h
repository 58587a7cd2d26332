// Rows convolved with a head's filter. Four rows and four taps at a time: 16 products of 7 rows of x and 4 of the
// filter. The rows that taps reach back to are still in the first cache level: nothing is kept from row to row, and
// any number of taps is one loop.
//
// Include inside a Highway foreach_target translation unit only.

#if defined(TENSORCACHE_SHORT_CONV_CONVOLVE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORCACHE_SHORT_CONV_CONVOLVE_INL_H_
#undef TENSORCACHE_SHORT_CONV_CONVOLVE_INL_H_
#else
#define TENSORCACHE_SHORT_CONV_CONVOLVE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/simd/math-inl.h"
#include "kernels/simd/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

// Adds w_k x_{r-k} for k < kTaps to column i of kRows rows. A weight is loaded once for all rows, an input once for
// all taps. Sums run in the order of the taps: a row comes out the same whichever rows come with it.
template <int kRows, int kTaps, class Access>
HWY_INLINE void AddTaps(DF d, Access access, const float* weight, int64_t D, const float* x, int64_t stride,
                        VF (&sum)[kRows]) {
  VF window[kRows + kTaps - 1];
  for (int m = 0; m < kRows + kTaps - 1; ++m) window[m] = KeepInRegister(access.Load(d, x + (m - kTaps + 1) * stride));
  for (int k = 0; k < kTaps; ++k) {
    const VF w = access.Load(d, weight + k * D);
    for (int r = 0; r < kRows; ++r) sum[r] = hn::MulAdd(w, window[r - k + kTaps - 1], sum[r]);
  }
}

template <int kRows, class Access>
HWY_INLINE void AddAllTaps(DF d, Access access, const float* weight, int64_t taps, int64_t D, const float* x,
                           int64_t stride, VF (&sum)[kRows]) {
  for (; taps >= 4; taps -= 4, weight += 4 * D, x -= 4 * stride) {
    AddTaps<kRows, 4>(d, access, weight, D, x, stride, sum);
  }
  if (taps >= 2) {
    AddTaps<kRows, 2>(d, access, weight, D, x, stride, sum);
    taps -= 2, weight += 2 * D, x -= 2 * stride;
  }
  if (taps > 0) AddTaps<kRows, 1>(d, access, weight, D, x, stride, sum);
}

// A filter of one head.
struct Filter {
  const float* weight;
  int64_t taps;
  int64_t D;
};

// Rows that are `stride` apart.
template <class T>
struct Strided {
  T* row;
  int64_t stride;
};

template <int kRows, class Access>
HWY_INLINE void ConvolveColumn(DF d, Access access, Filter f, Strided<const float> x, Strided<float> y, int64_t i) {
  VF sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = access.Load(d, x.row + r * x.stride + i);
  AddAllTaps(d, access, f.weight + i, f.taps, f.D, x.row + i, x.stride, sum);
  for (int r = 0; r < kRows; ++r) access.Store(sum[r], d, y.row + r * y.stride + i);
}

// y_r = x_r + sum_j w_j x_{r-j}. Rows before the first are where their stride puts them; with a negative one these
// are the rows behind. By hand rather than by ForEachVector: a column is too much code to be had five times.
template <int kRows>
HWY_INLINE void ConvolveRows(DF d, Filter f, Strided<const float> x, Strided<float> y) {
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + N <= f.D; i += N) ConvolveColumn<kRows>(d, WholeVector(), f, x, y, i);
  if (i < f.D) ConvolveColumn<kRows>(d, PartOfVector{static_cast<size_t>(f.D - i)}, f, x, y, i);
}

HWY_NOINLINE inline void Convolve(DF d, Filter f, int64_t rows, Strided<const float> x, Strided<float> y) {
  for (; rows >= 4; rows -= 4, x.row += 4 * x.stride, y.row += 4 * y.stride) ConvolveRows<4>(d, f, x, y);
  for (; rows > 0; --rows, x.row += x.stride, y.row += y.stride) ConvolveRows<1>(d, f, x, y);
}

// One row whose taps lie in two arrays: y = start (null: 0), and `near` taps from x back, and the others from `far`
// back.
inline void ConvolveAcross(DF d, const Filter& f, const float* start, int64_t near, const Strided<const float>& x,
                           const Strided<const float>& far, float* y) {
  ForEachVector(d, f.D, [&](auto access, int64_t i, auto) HWY_ATTR {
    VF sum = start != nullptr ? access.Load(d, start + i) : hn::Zero(d);
    const float *w = f.weight + i, *row = x.row + i;
    int64_t j = 0;
    for (; j < near; ++j, w += f.D, row -= x.stride) sum = hn::MulAdd(access.Load(d, w), access.Load(d, row), sum);
    row = far.row + i;
    for (; j < f.taps; ++j, w += f.D, row -= far.stride) sum = hn::MulAdd(access.Load(d, w), access.Load(d, row), sum);
    access.Store(sum, d, y + i);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#endif  // include guard
