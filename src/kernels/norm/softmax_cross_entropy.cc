// Three passes over a row (largest, exponentials, scaling), which stays in the second cache level up to vocabularies of
// some hundred thousand tokens.
#include "kernels/norm/softmax_cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/softmax_cross_entropy.cc"
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

float Largest(DF d, const float* x, int64_t width) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  Accumulators<DF> maxima(d, kLowest);
  ForEachVector(d, width, [&](auto access, int64_t i, auto slot) HWY_ATTR {
    maxima.at[slot] = hn::Max(maxima.at[slot], access.Keep(d, access.Load(d, x + i), kLowest));
  });
  return maxima.Max(d);
}

// sum_i exp(x_i - largest); the terms themselves go to `out` if it is not null.
float SumOfExponentials(DF d, const float* x, int64_t width, float largest, float* out) {
  Accumulators<DF> sum(d, 0);
  const VF offset = hn::Set(d, largest);
  ForEachVector(d, width, [&](auto access, int64_t i, auto slot) HWY_ATTR {
    const VF p = ExpNonPositive(d, hn::Sub(access.Load(d, x + i), offset));
    if (out != nullptr) access.Store(p, d, out + i);
    sum.at[slot] = hn::Add(sum.at[slot], access.Keep(d, p, 0));
  });
  return sum.Sum(d);
}

void CrossEntropyRows(const CrossEntropyArgs& args) {
  const DF d;
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + row * args.x_stride;
    float* dx = args.dx != nullptr ? args.dx + row * args.dx_stride : nullptr;
    const int64_t target = args.targets[row];
    TC_CHECK(target < args.width);
    const float largest = target >= 0 || args.best != nullptr ? Largest(d, x, args.width) : 0.0f;
    if (args.best != nullptr) {
      const int64_t best = std::find(x, x + args.width, largest) - x;
      args.best[row] = best < args.width ? best : 0;
    }
    if (target < 0) {
      args.nll[row] = 0;
      if (dx != nullptr) std::fill_n(dx, args.width, 0.0f);
      continue;
    }
    const double target_logit = x[target];  // before dx, which may be x, is written
    const float sum = SumOfExponentials(d, x, args.width, largest, dx);
    args.nll[row] = static_cast<float>(std::log(static_cast<double>(sum)) + (largest - target_logit));
    if (dx == nullptr) continue;
    const VF scale = hn::Set(d, 1 / sum);
    ForEachVector(d, args.width, [&](auto access, int64_t i, auto) HWY_ATTR {
      access.Store(hn::Mul(access.Load(d, dx + i), scale), d, dx + i);
    });
    dx[target] -= 1;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorcache {

HWY_EXPORT(CrossEntropyRows);

void SoftmaxCrossEntropy(const CrossEntropyArgs& args) {
  TC_CHECK(args.rows == 0 || args.width >= 1);
  HWY_DYNAMIC_DISPATCH(CrossEntropyRows)(args);
}

}  // namespace tensorcache
#endif  // HWY_ONCE
