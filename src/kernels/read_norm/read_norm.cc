// Each row is passed over twice; it stays in the first cache level between the passes.
#include "tensorcache/kernels/read_norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/check.h"
#include "kernels/read_norm/wide_row.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/read_norm/read_norm.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/simd/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
using Accumulators = Accumulators<DF>;

// One head: what its rows share.
struct Head {
  int64_t D;
  float inverse_width;  // 1 / D
  float floor;
  const float* gamma;
  const float* c;  // null: hard

  read_norm::WideRow Wide(const float* x) const { return {.D = D, .x = x, .gamma = gamma, .c = c}; }
};

struct Heads {
  int64_t D;
  float inverse_width;
  const float* gamma;
  const float* c;

  Heads(const ReadNormShape& n, const float* gamma, const float* c)
      : D(n.D), inverse_width(1.0f / static_cast<float>(n.D)), gamma(gamma), c(c) {}

  HWY_INLINE Head At(int64_t h) const {
    if (c == nullptr) return {D, inverse_width, static_cast<float>(kReadNormFloor), gamma + h * D, nullptr};
    return {D, inverse_width, c[h] * c[h], gamma + h * D, c + h};
  }
};

// Whether float is wide enough for the squares that make up this sum. Below 2^-80 it may have lost some to the end of
// the range, 2^-126; above, those are nothing beside it. False for NaN.
HWY_INLINE bool IsInRange(float sum) { return sum >= 0x1p-80f && sum <= std::numeric_limits<float>::max(); }

HWY_INLINE void ForwardRow(DF d, const Head& head, const float* x, float* y) {
  Accumulators square(d, 0);
  ForEachVector(d, head.D, [&](auto access, int64_t i, auto slot) HWY_ATTR {
    const VF v = access.Load(d, x + i);
    square.at[slot] = hn::MulAdd(v, v, square.at[slot]);
  });
  const float sum = square.Sum(d) * head.inverse_width + head.floor;
  if (!IsInRange(sum)) [[unlikely]] {
    return read_norm::WideForward(head.Wide(x), y);
  }
  const VF r = hn::Set(d, 1 / std::sqrt(sum));
  ForEachVector(d, head.D, [&](auto access, int64_t i, auto) HWY_ATTR {
    access.Store(hn::Mul(hn::Mul(access.Load(d, x + i), r), access.Load(d, head.gamma + i)), d, y + i);
  });
}

struct RowGradients {
  const float* x;
  const float* d_y;
  float* d_x;      // null: not wanted
  float* d_gamma;  // added to; null: not wanted
};

// Returns what the row adds to d_c.
HWY_INLINE double BackwardRow(DF d, const Head& head, const RowGradients& row) {
  const float *x = row.x, *d_y = row.d_y;
  float *d_x = row.d_x, *d_gamma = row.d_gamma;
  Accumulators square(d, 0), product(d, 0);
  ForEachVector(d, head.D, [&](auto access, int64_t i, auto slot) HWY_ATTR {
    const VF v = access.Load(d, x + i);
    const VF g = hn::Mul(access.Load(d, d_y + i), access.Load(d, head.gamma + i));
    square.at[slot] = hn::MulAdd(v, v, square.at[slot]);
    product.at[slot] = hn::MulAdd(g, v, product.at[slot]);
  });
  const float sum = square.Sum(d) * head.inverse_width + head.floor;
  const float sum_gx = product.Sum(d);
  if (!IsInRange(sum) || !std::isfinite(sum_gx)) [[unlikely]] {
    return read_norm::WideBackward(head.Wide(x), d_y, d_x, d_gamma);
  }
  const float inverse_root = 1 / std::sqrt(sum);
  const VF r = hn::Set(d, inverse_root);
  const VF mean_gh = hn::Set(d, sum_gx * head.inverse_width * inverse_root);
  ForEachVector(d, head.D, [&](auto access, int64_t i, auto) HWY_ATTR {
    const VF h = hn::Mul(access.Load(d, x + i), r);
    const VF dy = access.Load(d, d_y + i);
    if (d_gamma != nullptr) access.Store(hn::MulAdd(dy, h, access.Load(d, d_gamma + i)), d, d_gamma + i);
    if (d_x != nullptr) {
      const VF g = hn::Mul(dy, access.Load(d, head.gamma + i));
      access.Store(hn::Mul(r, hn::NegMulAdd(h, mean_gh, g)), d, d_x + i);
    }
  });
  if (head.c == nullptr) return 0;
  const double wide_r = inverse_root;
  return -static_cast<double>(*head.c) * wide_r * wide_r * wide_r * sum_gx;
}

// Heads whose rows are taken in turn; their parameters and sums stay in the first cache level.
constexpr int64_t kHeadsAtOnce = 16;

// Items of one batch row: the heads h .. h + count - 1 of b.
struct HeadRange {
  int64_t b, h, count;

  HeadRange(int64_t H, int64_t begin, int64_t end)
      : b(begin / H), h(begin % H), count(std::min({end - begin, H - h, kHeadsAtOnce})) {}

  // f(head of the range, t), in the order in which the rows lie in memory: taken head by head, (T, H, D) would be
  // fetched piece by piece. Either order takes the tokens of a head in turn. One call of f for both, so that it is
  // inlined.
  template <class F>
  HWY_INLINE void ForEachRow(int64_t T, const Rows<const float>& x, const F& f) const {
    const bool by_token = x.token >= x.head;
    const int64_t outer = by_token ? T : count, inner = by_token ? count : T;
    for (int64_t i = 0; i < outer; ++i) {
      for (int64_t j = 0; j < inner; ++j) f(by_token ? j : i, by_token ? i : j);
    }
  }
};

void ForwardItems(const ReadNormForwardArgs<float>& args, int64_t begin, int64_t end) {
  const ReadNormShape& n = args.shape;
  const Heads heads(n, args.gamma, args.c);
  while (begin < end) {
    const HeadRange range(n.H, begin, end);
    range.ForEachRow(n.T, args.x, [&](int64_t i, int64_t t) HWY_ATTR {
      const int64_t h = range.h + i;
      ForwardRow(DF(), heads.At(h), args.x.At(range.b, h, t), args.y.At(range.b, h, t));
    });
    begin += range.count;
  }
}

void BackwardItems(const ReadNormBackwardArgs<float>& args, int64_t begin, int64_t end) {
  const ReadNormShape& n = args.shape;
  const Heads heads(n, args.gamma, args.c);
  if (args.d_gamma != nullptr) std::fill(args.d_gamma + begin * n.D, args.d_gamma + end * n.D, 0.0f);
  while (begin < end) {
    const HeadRange range(n.H, begin, end);
    double d_c[kHeadsAtOnce] = {};
    range.ForEachRow(n.T, args.x, [&](int64_t i, int64_t t) HWY_ATTR {
      const int64_t h = range.h + i;
      d_c[i] += BackwardRow(DF(), heads.At(h),
                            {.x = args.x.At(range.b, h, t),
                             .d_y = args.d_y.At(range.b, h, t),
                             .d_x = args.d_x ? args.d_x.At(range.b, h, t) : nullptr,
                             .d_gamma = args.d_gamma != nullptr ? args.d_gamma + (begin + i) * n.D : nullptr});
    });
    for (int64_t i = 0; i < range.count && args.d_c != nullptr; ++i) args.d_c[begin + i] = static_cast<float>(d_c[i]);
    begin += range.count;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorcache {
namespace {

Status Bad(const std::string& what) { return InvalidArgument("read_norm: " + what); }

Status CheckShape(const ReadNormShape& n) {
  if (n.B < 0 || n.H < 0 || n.T < 0 || n.D < 1) {
    return Bad(
        fmt::format("B, H and T must be >= 0, and D >= 1; got B = {}, H = {}, T = {}, D = {}", n.B, n.H, n.T, n.D));
  }
  // So that no index overflows.
  constexpr int64_t kMost = int64_t{1} << 30;
  for (const int64_t size : {n.B, n.H, n.T, n.D}) {
    if (size > kMost) return Bad(fmt::format("a size of {} is too large", size));
  }
  return OkStatus();
}

bool HasItems(const ReadNormShape& n) { return n.B > 0 && n.H > 0; }

// Rows that start at the same place are the same rows.
template <class Real>
Status CheckInPlace(const Rows<const Real>& in, const Rows<Real>& out, const char* names) {
  if (in.data != out.data || !in || (in.batch == out.batch && in.head == out.head && in.token == out.token)) {
    return OkStatus();
  }
  return Bad(fmt::format("{} share their data with different strides", names));
}

}  // namespace

template <class Real>
Status ValidateReadNorm(const ReadNormForwardArgs<Real>& args) {
  TC_RETURN_IF_ERROR(CheckShape(args.shape));
  if (!HasItems(args.shape)) return OkStatus();
  if (args.gamma == nullptr) return Bad("gamma is missing");
  if (args.shape.T > 0 && (!args.x || !args.y)) return Bad("x or y is missing");
  return CheckInPlace(args.x, args.y, "x and y");
}

template <class Real>
Status ValidateReadNormBackward(const ReadNormBackwardArgs<Real>& args) {
  TC_RETURN_IF_ERROR(CheckShape(args.shape));
  if (args.d_c != nullptr && args.c == nullptr) return Bad("d_c without c");
  if (!HasItems(args.shape)) return OkStatus();
  if (args.gamma == nullptr) return Bad("gamma is missing");
  if (args.shape.T > 0 && (!args.x || !args.d_y)) return Bad("x or d_y is missing");
  TC_RETURN_IF_ERROR(CheckInPlace(args.d_y, args.d_x, "d_y and d_x"));
  return CheckInPlace(args.x, args.d_x, "x and d_x");
}

template Status ValidateReadNorm(const ReadNormForwardArgs<float>&);
template Status ValidateReadNorm(const ReadNormForwardArgs<double>&);
template Status ValidateReadNormBackward(const ReadNormBackwardArgs<float>&);
template Status ValidateReadNormBackward(const ReadNormBackwardArgs<double>&);

HWY_EXPORT(ForwardItems);
HWY_EXPORT(BackwardItems);

void ReadNormForward(const ReadNormForwardArgs<float>& args, int64_t begin, int64_t end) {
  TC_CHECK(0 <= begin && begin <= end && end <= args.shape.B * args.shape.H);
  HWY_DYNAMIC_DISPATCH(ForwardItems)(args, begin, end);
}

void ReadNormBackward(const ReadNormBackwardArgs<float>& args, int64_t begin, int64_t end) {
  TC_CHECK(0 <= begin && begin <= end && end <= args.shape.B * args.shape.H);
  HWY_DYNAMIC_DISPATCH(BackwardItems)(args, begin, end);
}

}  // namespace tensorcache
#endif  // HWY_ONCE
