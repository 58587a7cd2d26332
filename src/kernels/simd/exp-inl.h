// A vector exp for the exponents <= 0 of softmax and decay.
//
// Include inside a Highway foreach_target translation unit only.

#if defined(TENSORCACHE_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORCACHE_EXP_INL_H_
#undef TENSORCACHE_EXP_INL_H_
#else
#define TENSORCACHE_EXP_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// exp(x) for x <= 0 (rounding may leave x a little above: anything up to 88 is as exact), within 2 ulp. -inf gives 0,
// and so does any x whose result would be subnormal (x < -87.33). NaN stays NaN.
//
// x = n ln2 + r with |r| <= ln2/2; exp(r) = 1 + r + r^2 Q(r), Q of degree 4 with relative error 4e-9; 2^n is added to
// the exponent bits. n ln2 is subtracted in two parts, the first of 9 bits, so that n times it is exact without fused
// arithmetic.
template <class Tag, class V = hn::Vec<Tag>>
HWY_INLINE V ExpNonPositive(Tag d, V x) {
  const hn::RebindToSigned<Tag> di;
  const V magic = hn::Set(d, 12582912.0f);  // 1.5 * 2^23: adding it leaves round(x / ln2) in the low bits
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), magic);
  const V n = hn::Sub(shifted, magic);
  const V r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x));

  V p = hn::MulAdd(r, hn::Set(d, 1.3814539e-3f), hn::Set(d, 8.368745e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.166839e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.16666521f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.49999994f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));

  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const V scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.33654f)), scaled);
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#endif  // include guard
