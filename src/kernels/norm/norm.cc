// Each row is passed over two or three times; it stays in the first cache level between the passes.
#include "tensorcache/kernels/norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/norm.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/simd/exp-inl.h"
#include "kernels/simd/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
using Accumulators = Accumulators<DF>;

// h = ((x - mean) - correction) r
struct Statistics {
  float mean;
  float correction;
  float r;

  HWY_INLINE VF Normalise(DF d, VF x) const {
    const VF centred = hn::Sub(hn::Sub(x, hn::Set(d, mean)), hn::Set(d, correction));
    return hn::Mul(centred, hn::Set(d, r));
  }
};

// The mean of the centred values corrects the mean itself, whose rounding error is relative to |x| rather than to the
// spread of x: rows far from zero keep their accuracy.
Statistics LayerStatistics(DF d, const float* x, int64_t width, float eps) {
  const float n = static_cast<float>(width);
  Accumulators sum(d, 0);
  ForEachVector(d, width, [&](auto access, int64_t i, auto slot) HWY_ATTR {
    sum.at[slot] = hn::Add(sum.at[slot], access.Load(d, x + i));
  });
  const float mean = sum.Sum(d) / n;
  Accumulators first(d, 0), second(d, 0);
  ForEachVector(d, width, [&](auto access, int64_t i, auto slot) HWY_ATTR {
    const VF centred = access.Keep(d, hn::Sub(access.Load(d, x + i), hn::Set(d, mean)), 0);
    first.at[slot] = hn::Add(first.at[slot], centred);
    second.at[slot] = hn::MulAdd(centred, centred, second.at[slot]);
  });
  const float correction = first.Sum(d) / n;
  const float variance = std::max(0.0f, second.Sum(d) / n - correction * correction);
  return {mean, correction, 1 / std::sqrt(variance + eps)};
}

Statistics RmsStatistics(DF d, const float* x, int64_t width, float eps) {
  Accumulators square(d, 0);
  ForEachVector(d, width, [&](auto access, int64_t i, auto slot) HWY_ATTR {
    const VF v = access.Load(d, x + i);
    square.at[slot] = hn::MulAdd(v, v, square.at[slot]);
  });
  return {0, 0, 1 / std::sqrt(square.Sum(d) / static_cast<float>(width) + eps)};
}

void LayerNormRows(const NormArgs& args) {
  const DF d;
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + row * args.x_stride;
    float* y = args.y + row * args.y_stride;
    const Statistics s = LayerStatistics(d, x, args.width, args.eps);
    if (args.bias != nullptr) {
      ForEachVector(d, args.width, [&](auto access, int64_t i, auto) HWY_ATTR {
        const VF h = s.Normalise(d, access.Load(d, x + i));
        access.Store(hn::MulAdd(h, access.Load(d, args.weight + i), access.Load(d, args.bias + i)), d, y + i);
      });
    } else {
      ForEachVector(d, args.width, [&](auto access, int64_t i, auto) HWY_ATTR {
        access.Store(hn::Mul(s.Normalise(d, access.Load(d, x + i)), access.Load(d, args.weight + i)), d, y + i);
      });
    }
  }
}

void RmsNormRows(const NormArgs& args) {
  const DF d;
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + row * args.x_stride;
    float* y = args.y + row * args.y_stride;
    const VF r = hn::Set(d, RmsStatistics(d, x, args.width, args.eps).r);
    ForEachVector(d, args.width, [&](auto access, int64_t i, auto) HWY_ATTR {
      access.Store(hn::Mul(hn::Mul(access.Load(d, x + i), r), access.Load(d, args.weight + i)), d, y + i);
    });
  }
}

// `mean_g` and its pass apply to LayerNorm only: RMSNorm does not centre.
template <bool kCentred>
void BackwardRow(DF d, const NormBackwardArgs& args, int64_t row) {
  const float* x = args.x + row * args.x_stride;
  const float* dy = args.dy + row * args.dy_stride;
  float* dx = args.dx + row * args.dx_stride;
  const float n = static_cast<float>(args.width);
  const Statistics s =
      kCentred ? LayerStatistics(d, x, args.width, args.eps) : RmsStatistics(d, x, args.width, args.eps);

  Accumulators sum_g(d, 0), sum_gh(d, 0);
  ForEachVector(d, args.width, [&](auto access, int64_t i, auto slot) HWY_ATTR {
    const VF h = s.Normalise(d, access.Load(d, x + i));
    const VF dyv = access.Load(d, dy + i);
    const VF g = hn::Mul(dyv, access.Load(d, args.weight + i));
    if constexpr (kCentred) sum_g.at[slot] = hn::Add(sum_g.at[slot], g);
    sum_gh.at[slot] = hn::MulAdd(g, h, sum_gh.at[slot]);
    if (args.dweight != nullptr) {
      access.Store(hn::MulAdd(dyv, h, access.Load(d, args.dweight + i)), d, args.dweight + i);
    }
    if (kCentred && args.dbias != nullptr) {
      access.Store(hn::Add(dyv, access.Load(d, args.dbias + i)), d, args.dbias + i);
    }
  });
  const VF mean_g = hn::Set(d, sum_g.Sum(d) / n);
  const VF mean_gh = hn::Set(d, sum_gh.Sum(d) / n);
  ForEachVector(d, args.width, [&](auto access, int64_t i, auto) HWY_ATTR {
    const VF h = s.Normalise(d, access.Load(d, x + i));
    VF g = hn::Mul(access.Load(d, dy + i), access.Load(d, args.weight + i));
    if constexpr (kCentred) g = hn::Sub(g, mean_g);
    access.Store(hn::Mul(hn::Set(d, s.r), hn::NegMulAdd(h, mean_gh, g)), d, dx + i);
  });
}

void LayerNormBackwardRows(const NormBackwardArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) BackwardRow<true>(DF(), args, row);
}

void RmsNormBackwardRows(const NormBackwardArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) BackwardRow<false>(DF(), args, row);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorcache {

HWY_EXPORT(LayerNormRows);
HWY_EXPORT(RmsNormRows);
HWY_EXPORT(LayerNormBackwardRows);
HWY_EXPORT(RmsNormBackwardRows);

void LayerNorm(const NormArgs& args) { HWY_DYNAMIC_DISPATCH(LayerNormRows)(args); }
void RmsNorm(const NormArgs& args) {
  TC_CHECK(args.bias == nullptr);
  HWY_DYNAMIC_DISPATCH(RmsNormRows)(args);
}
void LayerNormBackward(const NormBackwardArgs& args) { HWY_DYNAMIC_DISPATCH(LayerNormBackwardRows)(args); }
void RmsNormBackward(const NormBackwardArgs& args) {
  TC_CHECK(args.dbias == nullptr);
  HWY_DYNAMIC_DISPATCH(RmsNormBackwardRows)(args);
}

}  // namespace tensorcache
#endif  // HWY_ONCE
