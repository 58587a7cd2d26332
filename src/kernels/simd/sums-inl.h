// Sums of the lanes of several vectors at a time.
//
// Include inside a Highway foreach_target translation unit only.

#if defined(TENSORCACHE_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORCACHE_SUMS_INL_H_
#undef TENSORCACHE_SUMS_INL_H_
#else
#define TENSORCACHE_SUMS_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
// The sum of the 128-bit blocks of x to to[0, 4).
template <class Tag, class V = hn::Vec<Tag>>
HWY_INLINE void StoreBlockSum(Tag d, V x, float* to) {
  if constexpr (hn::MaxLanes(Tag()) == 4) {
    hn::StoreU(x, d, to);
  } else {
    const hn::Half<Tag> half;
    StoreBlockSum(half, hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)), to);
  }
}
#endif

// Sums of the lanes of four vectors to to[0, 4).
template <class Tag, class V = hn::Vec<Tag>>
HWY_INLINE void StoreSums4(Tag d, V a, V b, V c, V e, float* to) {
  if constexpr (hn::MaxLanes(Tag()) < 4) {
    to[0] = hn::GetLane(hn::SumOfLanes(d, a));
    to[1] = hn::GetLane(hn::SumOfLanes(d, b));
    to[2] = hn::GetLane(hn::SumOfLanes(d, c));
    to[3] = hn::GetLane(hn::SumOfLanes(d, e));
  }
#if HWY_TARGET != HWY_SCALAR
  // Transposes and adds at once: each 128-bit block becomes (a, b, c, e), each the sum of that block.
  if constexpr (hn::MaxLanes(Tag()) >= 4) {
    const hn::Repartition<uint64_t, Tag> d64;
    const auto ab = hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
    const auto ce = hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
    const auto low = hn::BitCast(d, hn::InterleaveLower(d64, ab, ce));
    const auto high = hn::BitCast(d, hn::InterleaveUpper(d64, ab, ce));
    StoreBlockSum(d, hn::Add(low, high), to);
  }
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#endif  // include guard
