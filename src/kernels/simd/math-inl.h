// Vector helpers the elementwise kernels share: partial loads and stores, sigmoid, and the normal distribution.
// Include after hwy/highway.h from a foreach_target source.
#if defined(TENSORCACHE_KERNELS_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORCACHE_KERNELS_SIMD_MATH_INL_H_
#undef TENSORCACHE_KERNELS_SIMD_MATH_INL_H_
#else
#define TENSORCACHE_KERNELS_SIMD_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "kernels/simd/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// GCC would rather load an operand again for each use of it, and loads are what limits most kernels.
template <class V>
HWY_INLINE V KeepInRegister(V v) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  auto raw = v.raw;
  asm("" : "+v"(raw));
  v.raw = raw;
#endif
  return v;
}

// The first `count` < Lanes(d) elements at p, the others zero; touches no byte past them.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadPartial(D d, const T* p, size_t count) {
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(T)] = {};
  std::memcpy(buffer, p, count * sizeof(T));
  return hn::Load(d, buffer);
#else
  return hn::MaskedLoad(hn::FirstN(d, count), d, p);
#endif
}

template <class D, class T = hn::TFromD<D>>
HWY_INLINE void StorePartial(hn::Vec<D> v, D d, T* p, size_t count) {
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(v, d, buffer);
  std::memcpy(p, buffer, count * sizeof(T));
#else
  hn::BlendedStore(v, hn::FirstN(d, count), d, p);
#endif
}

// Both s = sigmoid(x) and its slope s (1 - s), each with small relative error on both tails: only exp(-|x|) is taken.
template <class V>
struct SigmoidPair {
  V value;
  V slope;
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE SigmoidPair<V> SigmoidWithSlope(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V e = ExpNonPositive(d, hn::Neg(hn::Abs(x)));
  const V large = hn::Div(one, hn::Add(one, e));  // sigmoid(|x|)
  const V small = hn::Mul(e, large);              // sigmoid(-|x|)
  return {hn::IfThenElse(hn::Lt(x, hn::Zero(d)), small, large), hn::Mul(large, small)};
}

// The standard normal distribution function Phi(x) and its density phi(x).
template <class V>
struct NormalPair {
  V distribution;
  V density;
};

// Phi(-|x|) = exp(-x^2 / 2) t P(t) / 2 with t = 1 / (1 + 0.3 |x| / sqrt 2). P is a minimax fit of the scaled
// complementary error function, erfcx(z) / t, on z in [0, 9.6]: relative error 2e-8; with float rounding about 5e-7.
// Further out the exponential underflows to 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE NormalPair<V> NormalDistribution(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V a = hn::Abs(x);
  const V e = ExpNonPositive(d, hn::Mul(hn::Mul(a, a), hn::Set(d, -0.5f)));
  const V t = hn::Div(one, hn::MulAdd(a, hn::Set(d, 0.212132034f), one));
  V p = hn::MulAdd(hn::Set(d, -0.129457861f), t, hn::Set(d, 0.485221475f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.511508405f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.546750665f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.0939051509f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.214568034f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.148443833f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.170698225f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.169189185f));
  const V lower = hn::Mul(hn::Mul(hn::Set(d, 0.5f), e), hn::Mul(p, t));
  const V distribution = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), lower, hn::Sub(one, lower));
  return {distribution, hn::Mul(e, hn::Set(d, 0.398942280f))};
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#endif  // TENSORCACHE_KERNELS_SIMD_MATH_INL_H_
