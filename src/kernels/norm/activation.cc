#include "kernels/norm/activation.h"

#include "core/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/activation.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/simd/math-inl.h"
#include "kernels/simd/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

struct Value {
  VF f;
  VF slope;  // f'(a)
};

// The functions of a gate: f(a) alone, and with its slope.
struct Silu {
  static HWY_INLINE VF F(DF d, VF a) { return hn::Mul(a, SigmoidWithSlope(d, a).value); }
  static HWY_INLINE Value Both(DF d, VF a) {
    const auto s = SigmoidWithSlope(d, a);
    return {hn::Mul(a, s.value), hn::MulAdd(a, s.slope, s.value)};
  }
};

struct Gelu {
  static HWY_INLINE VF F(DF d, VF a) { return hn::Mul(a, NormalDistribution(d, a).distribution); }
  static HWY_INLINE Value Both(DF d, VF a) {
    const auto p = NormalDistribution(d, a);
    return {hn::Mul(a, p.distribution), hn::MulAdd(a, p.density, p.distribution)};
  }
};

struct GeluTanh {
  // 2u = a (2k + 2k 0.044715 a^2). Beyond |a| = 20 the sigmoid is 0 or 1; the clamp keeps a^3 and its slope finite.
  static constexpr float kLinear = 1.5957691216f;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = kLinear * 0.044715f;

  static HWY_INLINE VF Clamp(DF d, VF a) { return hn::Max(hn::Min(a, hn::Set(d, 20.0f)), hn::Set(d, -20.0f)); }
  static HWY_INLINE VF F(DF d, VF a) {
    const VF c = Clamp(d, a);
    const VF u2 = hn::Mul(c, hn::MulAdd(hn::Mul(c, c), hn::Set(d, kCubic), hn::Set(d, kLinear)));
    return hn::Mul(a, SigmoidWithSlope(d, u2).value);
  }
  static HWY_INLINE Value Both(DF d, VF a) {
    const VF c = Clamp(d, a);
    const VF square = hn::Mul(c, c);
    const VF u2 = hn::Mul(c, hn::MulAdd(square, hn::Set(d, kCubic), hn::Set(d, kLinear)));
    const VF du2 = hn::MulAdd(square, hn::Set(d, 3 * kCubic), hn::Set(d, kLinear));
    const auto s = SigmoidWithSlope(d, u2);
    return {hn::Mul(a, s.value), hn::MulAdd(hn::Mul(c, du2), s.slope, s.value)};
  }
};

template <class Function>
void ForwardRows(const GateArgs& args) {
  const DF d;
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* a = args.a + row * args.a_stride;
    float* y = args.y + row * args.y_stride;
    if (args.b == nullptr) {
      ForEachVector(d, args.width, [&](auto access, int64_t i, auto) HWY_ATTR {
        access.Store(Function::F(d, access.Load(d, a + i)), d, y + i);
      });
    } else {
      const float* b = args.b + row * args.b_stride;
      ForEachVector(d, args.width, [&](auto access, int64_t i, auto) HWY_ATTR {
        access.Store(hn::Mul(Function::F(d, access.Load(d, a + i)), access.Load(d, b + i)), d, y + i);
      });
    }
  }
}

template <class Function>
void BackwardRows(const GateBackwardArgs& args) {
  const DF d;
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* a = args.a + row * args.a_stride;
    const float* dy = args.dy + row * args.dy_stride;
    float* da = args.da + row * args.da_stride;
    if (args.b == nullptr) {
      ForEachVector(d, args.width, [&](auto access, int64_t i, auto) HWY_ATTR {
        const Value v = Function::Both(d, access.Load(d, a + i));
        access.Store(hn::Mul(access.Load(d, dy + i), v.slope), d, da + i);
      });
    } else {
      const float* b = args.b + row * args.b_stride;
      float* db = args.db + row * args.db_stride;
      ForEachVector(d, args.width, [&](auto access, int64_t i, auto) HWY_ATTR {
        const Value v = Function::Both(d, access.Load(d, a + i));
        const VF dyv = access.Load(d, dy + i);
        const VF db_value = hn::Mul(dyv, v.f);
        access.Store(hn::Mul(hn::Mul(dyv, access.Load(d, b + i)), v.slope), d, da + i);
        access.Store(db_value, d, db + i);
      });
    }
  }
}

void GateRows(const GateArgs& args) {
  switch (args.activation) {
    case Activation::kSilu: return ForwardRows<Silu>(args);
    case Activation::kGelu: return ForwardRows<Gelu>(args);
    case Activation::kGeluTanh: return ForwardRows<GeluTanh>(args);
  }
}

void GateBackwardRows(const GateBackwardArgs& args) {
  switch (args.activation) {
    case Activation::kSilu: return BackwardRows<Silu>(args);
    case Activation::kGelu: return BackwardRows<Gelu>(args);
    case Activation::kGeluTanh: return BackwardRows<GeluTanh>(args);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorcache {

HWY_EXPORT(GateRows);
HWY_EXPORT(GateBackwardRows);

void Gate(const GateArgs& args) { HWY_DYNAMIC_DISPATCH(GateRows)(args); }

void GateBackward(const GateBackwardArgs& args) {
  TC_CHECK((args.b == nullptr) == (args.db == nullptr));
  HWY_DYNAMIC_DISPATCH(GateBackwardRows)(args);
}

}  // namespace tensorcache
#endif  // HWY_ONCE
