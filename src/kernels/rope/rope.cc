// The rotation of rows, at the speed of copying them.
#include "tensorcache/kernels/rope.h"

#include <cstring>

#include "core/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope/rope.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// One row's table and direction.
struct Turn {
  const float* cos;
  const float* sin;
  bool inverse;

  template <class D, class V = hn::Vec<D>>
  HWY_INLINE void Apply(D d, int64_t i, V& a, V& b) const {
    const V c = hn::LoadU(d, cos + i);
    V s = hn::LoadU(d, sin + i);
    if (inverse) s = hn::Neg(s);
    const V turned = hn::NegMulAdd(b, s, hn::Mul(a, c));
    b = hn::MulAdd(a, s, hn::Mul(b, c));
    a = turned;
  }
};

// Pairs from i on in steps of d's lanes, as far as whole steps go; returns the first pair left. Each step loads what it
// stores before it stores, so x may be y.
template <class D>
HWY_INLINE int64_t HalfSplit(D d, const Turn& turn, int64_t i, int64_t pairs, const float* x, float* y) {
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  for (; i + N <= pairs; i += N) {
    auto a = hn::LoadU(d, x + i);
    auto b = hn::LoadU(d, x + pairs + i);
    turn.Apply(d, i, a, b);
    hn::StoreU(a, d, y + i);
    hn::StoreU(b, d, y + pairs + i);
  }
  return i;
}

template <class D>
HWY_INLINE int64_t Interleaved(D d, const Turn& turn, int64_t i, int64_t pairs, const float* x, float* y) {
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  for (; i + N <= pairs; i += N) {
    hn::Vec<D> a, b;
    hn::LoadInterleaved2(d, x + 2 * i, a, b);
    turn.Apply(d, i, a, b);
    hn::StoreInterleaved2(a, b, d, y + 2 * i);
  }
  return i;
}

void Rotate(const RopeArgs& args) {
  const hn::ScalableTag<float> full;
  const hn::CappedTag<float, 4> four;
  const hn::CappedTag<float, 1> one;
  const int64_t pairs = args.rotary_dims / 2;
  const size_t rest = static_cast<size_t>(args.dims - args.rotary_dims) * sizeof(float);
  for (int64_t b = 0; b < args.batch; ++b) {
    for (int64_t t = 0; t < args.tokens; ++t) {
      for (int64_t h = 0; h < args.heads; ++h) {
        const Turn turn = {args.cos.At(b, h, t), args.sin.At(b, h, t), args.inverse};
        const float* x = args.in.At(b, h, t);
        float* y = args.out.At(b, h, t);
        if (args.pairing == RopePairing::kHalfSplit) {
          int64_t i = HalfSplit(full, turn, 0, pairs, x, y);
          i = HalfSplit(four, turn, i, pairs, x, y);
          HalfSplit(one, turn, i, pairs, x, y);
        } else {
          int64_t i = Interleaved(full, turn, 0, pairs, x, y);
          i = Interleaved(four, turn, i, pairs, x, y);
          for (; i < pairs; ++i) {
            auto a = hn::LoadU(one, x + 2 * i);
            auto b2 = hn::LoadU(one, x + 2 * i + 1);
            turn.Apply(one, i, a, b2);
            hn::StoreU(a, one, y + 2 * i);
            hn::StoreU(b2, one, y + 2 * i + 1);
          }
        }
        if (rest != 0 && x != y) std::memcpy(y + args.rotary_dims, x + args.rotary_dims, rest);
      }
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorcache {

HWY_EXPORT(Rotate);

void ApplyRope(const RopeArgs& args) {
  TC_CHECK(args.rotary_dims >= 0 && args.rotary_dims % 2 == 0 && args.rotary_dims <= args.dims);
  TC_CHECK(args.in.data != args.out.data ||
           (args.in.batch == args.out.batch && args.in.head == args.out.head && args.in.token == args.out.token));
  HWY_DYNAMIC_DISPATCH(Rotate)(args);
}

}  // namespace tensorcache
#endif  // HWY_ONCE
