// Walks a row of floats vector by vector, with the end of the row handled in one place.
// Include after hwy/highway.h from a foreach_target source.
#if defined(TENSORCACHE_KERNELS_SIMD_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORCACHE_KERNELS_SIMD_ROW_INL_H_
#undef TENSORCACHE_KERNELS_SIMD_ROW_INL_H_
#else
#define TENSORCACHE_KERNELS_SIMD_ROW_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// How one vector of the row is read and written: all lanes, or the first `count` at the end of the row.
struct WholeVector {
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, const float* p) const {
    return hn::LoadU(d, p);
  }
  template <class D>
  HWY_INLINE void Store(hn::Vec<D> v, D d, float* p) const {
    hn::StoreU(v, d, p);
  }
  // v, with `other` in the lanes past the end of the row.
  template <class D>
  HWY_INLINE hn::Vec<D> Keep(D, hn::Vec<D> v, float) const {
    return v;
  }
};

struct PartOfVector {
  size_t count;

  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, const float* p) const {
    return LoadPartial(d, p, count);
  }
  template <class D>
  HWY_INLINE void Store(hn::Vec<D> v, D d, float* p) const {
    StorePartial(v, d, p, count);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Keep(D d, hn::Vec<D> v, float other) const {
    return hn::IfThenElse(hn::FirstN(d, count), v, hn::Set(d, other));
  }
};

// The accumulator a vector's terms belong to: four of them, so that sums do not wait for the latency of one.
template <int kIndex>
using Slot = std::integral_constant<int, kIndex>;

// f(access, i, slot) for the vectors at columns i of a row of `width`.
template <class D, class F>
HWY_INLINE void ForEachVector(D d, int64_t width, const F& f) {
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + 4 * N <= width; i += 4 * N) {
    f(WholeVector(), i, Slot<0>());
    f(WholeVector(), i + N, Slot<1>());
    f(WholeVector(), i + 2 * N, Slot<2>());
    f(WholeVector(), i + 3 * N, Slot<3>());
  }
  for (; i + N <= width; i += N) f(WholeVector(), i, Slot<0>());
  if (i < width) f(PartOfVector{static_cast<size_t>(width - i)}, i, Slot<1>());
}

// Four partial sums (or maxima) of a row.
template <class D>
struct Accumulators {
  using V = hn::Vec<D>;
  HWY_INLINE Accumulators(D d, float start) {
    for (V& a : at) a = hn::Set(d, start);
  }

  HWY_INLINE float Sum(D d) const {
    return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(at[0], at[1]), hn::Add(at[2], at[3]))));
  }
  // Lane by lane: MaxOfLanes of the EMU128 target starts from the lowest finite number and loses -inf.
  HWY_INLINE float Max(D d) const {
    HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
    hn::Store(hn::Max(hn::Max(at[0], at[1]), hn::Max(at[2], at[3])), d, lanes);
    return *std::max_element(lanes, lanes + hn::Lanes(d));
  }

  V at[4];
};

// to[0, n) = factor * from[0, n), touching nothing else; `to` may be `from`.
HWY_INLINE void ScaleRow(float factor, const float* from, int64_t n, float* to) {
  const hn::ScalableTag<float> d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const auto f = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + N <= n; i += N) hn::StoreU(hn::Mul(f, hn::LoadU(d, from + i)), d, to + i);
  for (; i < n; ++i) to[i] = factor * from[i];
}

// Whether none of rows x cols numbers is infinite or NaN.
inline bool AllFinite(const float* data, int64_t rows, int64_t cols, int64_t row_stride) {
  const hn::ScalableTag<float> d;
  const auto zero = hn::Zero(d);
  Accumulators<decltype(d)> probe(d, 0.0f);  // 0 * x is NaN exactly for infinite and NaN x
  for (int64_t i = 0; i < rows; ++i) {
    ForEachVector(d, cols, [&](auto access, int64_t j, auto slot) HWY_ATTR {
      probe.at[slot] = hn::MulAdd(zero, access.Load(d, data + i * row_stride + j), probe.at[slot]);
    });
  }
  return probe.Sum(d) == 0.0f;
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#endif  // TENSORCACHE_KERNELS_SIMD_ROW_INL_H_
