// The forward pass convolves a few rows and scales them while they are in the first cache level; the backward pass
// goes through an item in chunks of rows.
#include "tensorcache/kernels/short_conv.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "kernels/short_conv/chunk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/short_conv/short_conv.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/short_conv/convolve-inl.h"
#include "kernels/simd/row-inl.h"
#include "kernels/simd/sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Accumulators = Accumulators<DF>;
using short_conv::kChunkRows;
using short_conv::KeptRows;

constexpr float kEps = 1e-12f;

// The vector whose lanes add up to |z|^2.
HWY_INLINE VF Squares(DF d, const float* z, int64_t D) {
  Accumulators square(d, 0);
  ForEachVector(d, D, [&](auto access, int64_t i, auto slot) HWY_ATTR {
    const VF v = access.Load(d, z + i);
    square.at[slot] = hn::MulAdd(v, v, square.at[slot]);
  });
  return hn::Add(hn::Add(square.at[0], square.at[1]), hn::Add(square.at[2], square.at[3]));
}

HWY_INLINE void ScaleInPlace(DF d, float factor, int64_t D, float* z) {
  const VF f = hn::Set(d, factor);
  ForEachVector(
      d, D, [&](auto access, int64_t i, auto) HWY_ATTR { access.Store(hn::Mul(access.Load(d, z + i), f), d, z + i); });
}

float InverseLength(float square) { return 1 / std::sqrt(square + kEps); }

// Four rows at a time share the sums over lanes, one row alone makes them in the same order.
void ScaleToUnit(DF d, int64_t rows, int64_t D, Strided<float> z) {
  float square[4];
  for (; rows >= 4; rows -= 4, z.row += 4 * z.stride) {
    float* const row[4] = {z.row, z.row + z.stride, z.row + 2 * z.stride, z.row + 3 * z.stride};
    StoreSums4(d, Squares(d, row[0], D), Squares(d, row[1], D), Squares(d, row[2], D), Squares(d, row[3], D), square);
    for (int r = 0; r < 4; ++r) ScaleInPlace(d, InverseLength(square[r]), D, row[r]);
  }
  for (; rows > 0; --rows, z.row += z.stride) {
    const VF squares = Squares(d, z.row, D);
    StoreSums4(d, squares, squares, squares, squares, square);
    ScaleInPlace(d, InverseLength(square[0]), D, z.row);
  }
}

void ForwardItem(DF d, const ShortConvForwardArgs<float>& args, int64_t b, int64_t h) {
  const ShortConvShape& n = args.shape;
  const Filter filter{.weight = args.weight + h * n.taps * n.D, .taps = n.taps, .D = n.D};
  const int64_t kept = KeptRows(n), edge = std::min(n.T, kept);
  for (int64_t t = 0; t < edge; ++t) {
    const float* x = args.x.At(b, h, t);
    Filter seen = filter;
    Strided<const float> past{};
    if (args.past) {
      past = {.row = args.past.At(b, h, kept - 1), .stride = args.past.token};
    } else {
      seen.taps = t + 1;
    }
    const Strided<float> y{.row = args.y.At(b, h, t), .stride = args.y.token};
    ConvolveAcross(d, seen, x, t + 1, {.row = x, .stride = args.x.token}, past, y.row);
    if (n.unit) ScaleToUnit(d, 1, n.D, y);
  }
  // Few rows at a time: they are scaled while they are in the first cache level.
  constexpr int64_t kBlock = 8;
  for (int64_t t = edge; t < n.T; t += kBlock) {
    const int64_t rows = std::min(kBlock, n.T - t);
    const Strided<float> y{.row = args.y.At(b, h, t), .stride = args.y.token};
    Convolve(d, filter, rows, {.row = args.x.At(b, h, t), .stride = args.x.token}, y);
    if (n.unit) ScaleToUnit(d, rows, n.D, y);
  }
}

void ForwardItems(const ShortConvForwardArgs<float>& args, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) ForwardItem(DF(), args, item / args.shape.H, item % args.shape.H);
}

void CopyRow(DF d, const float* from, int64_t D, float* to) {
  ForEachVector(d, D,
                [&](auto access, int64_t i, auto) HWY_ATTR { access.Store(access.Load(d, from + i), d, to + i); });
}

void ZeroRow(DF d, int64_t D, float* to) {
  ForEachVector(d, D, [&](auto access, int64_t i, auto) HWY_ATTR { access.Store(hn::Zero(d), d, to + i); });
}

// d_z = r (d_y - y (y . d_y)) with y = r z, over z.
void UnitGradient(DF d, const float* d_y, int64_t D, float* z) {
  Accumulators square(d, 0), product(d, 0);
  ForEachVector(d, D, [&](auto access, int64_t i, auto slot) HWY_ATTR {
    const VF v = access.Load(d, z + i);
    square.at[slot] = hn::MulAdd(v, v, square.at[slot]);
    product.at[slot] = hn::MulAdd(v, access.Load(d, d_y + i), product.at[slot]);
  });
  const float inverse = InverseLength(square.Sum(d));
  const VF r = hn::Set(d, inverse), dot = hn::Set(d, product.Sum(d) * inverse);
  ForEachVector(d, D, [&](auto access, int64_t i, auto) HWY_ATTR {
    const VF y = hn::Mul(access.Load(d, z + i), r);
    access.Store(hn::Mul(r, hn::NegMulAdd(y, dot, access.Load(d, d_y + i))), d, z + i);
  });
}

// One item, chunk by chunk from the last token to the first, since a row's gradient wants d_z of the rows behind it.
// A chunk's rows are copied together: d_z with `kept` rows behind it, zeros after the last token, and x with `kept`
// rows before it, of the past or zeros. So no row of a chunk is an edge, and strides of a power of two do not crowd a
// few sets of the cache.
class ItemGradients {
 public:
  ItemGradients(const ShortConvBackwardArgs<float>& args, const short_conv::Chunk& chunk, int64_t b, int64_t h)
      : args_(args),
        n_(args.shape),
        b_(b),
        h_(h),
        kept_(KeptRows(n_)),
        filter_{.weight = args.weight + h * n_.taps * n_.D, .taps = n_.taps, .D = n_.D},
        chunk_(chunk) {}

  void Run() {
    const int64_t last = n_.T > 0 ? (n_.T - 1) / kChunkRows * kChunkRows : 0;
    for (int64_t i = 0; i < kept_; ++i) ZeroRow(d_, n_.D, chunk_.DZ(n_.T - last + i));
    for (int64_t t = last; t >= 0; t -= kChunkRows) {
      if (t < last) {
        for (int64_t i = 0; i < kept_; ++i) CopyRow(d_, chunk_.DZ(i), n_.D, chunk_.DZ(kChunkRows + i));
      }
      RunChunk(t, std::min(kChunkRows, n_.T - t), /*first=*/t == last);
    }
    // Row i of the past is kept_ - i tokens before the first.
    for (int64_t i = 0; i < kept_ && args_.d_past; ++i) {
      const Filter late{.weight = filter_.weight + (kept_ - i) * n_.D, .taps = i + 1, .D = n_.D};
      ConvolveAcross(d_, late, nullptr, late.taps, Behind(0), {}, args_.d_past.At(b_, h_, i));
    }
  }

 private:
  void RunChunk(int64_t t, int64_t rows, bool first) {
    if (n_.unit || args_.d_weight) CopyInputs(t, rows);
    if (n_.unit) {
      Convolve(d_, filter_, rows, {chunk_.X(kept_), chunk_.stride}, {chunk_.DZ(0), chunk_.stride});
    }
    for (int64_t r = 0; r < rows; ++r) {
      const float* d_y = args_.d_y.At(b_, h_, t + r);
      n_.unit ? UnitGradient(d_, d_y, n_.D, chunk_.DZ(r)) : CopyRow(d_, d_y, n_.D, chunk_.DZ(r));
    }
    if (args_.d_x && rows > 0) {
      Convolve(d_, filter_, rows, Behind(rows - 1), {args_.d_x.At(b_, h_, t + rows - 1), -args_.d_x.token});
    }
    if (args_.d_weight) {
      int64_t tap = 0;
      for (; tap + 4 <= n_.taps; tap += 4) AddToWeights<4>(tap, rows, first);
      for (; tap + 2 <= n_.taps; tap += 2) AddToWeights<2>(tap, rows, first);
      if (tap < n_.taps) AddToWeights<1>(tap, rows, first);
    }
  }

  void CopyInputs(int64_t t, int64_t rows) {
    for (int64_t i = 0; i < kept_ + rows; ++i) {
      const int64_t token = t - kept_ + i;
      if (token >= 0) {
        CopyRow(d_, args_.x.At(b_, h_, token), n_.D, chunk_.X(i));
      } else if (args_.past) {
        CopyRow(d_, args_.past.At(b_, h_, token + kept_), n_.D, chunk_.X(i));
      } else {
        ZeroRow(d_, n_.D, chunk_.X(i));
      }
    }
  }

  // d_z from a row on, last row first: what is before a row in it is behind it in time.
  Strided<const float> Behind(int64_t row) const { return {chunk_.DZ(row), -chunk_.stride}; }

  // d_w of kTaps taps: the sums of d_z with x over a chunk's rows, added to those of the chunks before it, if there
  // were any. Two sums for each tap, of even and odd rows, so that they do not wait for one another.
  template <int kTaps>
  HWY_NOINLINE void AddToWeights(int64_t tap, int64_t rows, bool first) {
    const int64_t N = static_cast<int64_t>(hn::Lanes(d_));
    int64_t i = 0;
    for (; i + N <= n_.D; i += N) AddColumnToWeights<kTaps>(WholeVector(), tap, rows, first, i);
    if (i < n_.D) AddColumnToWeights<kTaps>(PartOfVector{static_cast<size_t>(n_.D - i)}, tap, rows, first, i);
  }

  template <int kTaps, class Access>
  HWY_INLINE void AddColumnToWeights(Access access, int64_t tap, int64_t rows, bool first, int64_t i) {
    const DF d;
    const int64_t stride = chunk_.stride;
    VF even[kTaps], odd[kTaps];
    for (int k = 0; k < kTaps; ++k) even[k] = odd[k] = hn::Zero(d);
    const float *g = chunk_.DZ(0) + i, *x = chunk_.X(kept_ - tap) + i;
    int64_t r = 0;
    for (; r + 2 <= rows; r += 2, g += 2 * stride, x += 2 * stride) {
      VF window[kTaps + 1];
      for (int k = 0; k <= kTaps; ++k) window[k] = KeepInRegister(access.Load(d, x - (k - 1) * stride));
      const VF g0 = access.Load(d, g), g1 = access.Load(d, g + stride);
      for (int k = 0; k < kTaps; ++k) {
        even[k] = hn::MulAdd(g0, window[k + 1], even[k]);
        odd[k] = hn::MulAdd(g1, window[k], odd[k]);
      }
    }
    if (r < rows) {
      const VF g0 = access.Load(d, g);
      for (int k = 0; k < kTaps; ++k) even[k] = hn::MulAdd(g0, access.Load(d, x - k * stride), even[k]);
    }
    for (int k = 0; k < kTaps; ++k) {
      float* to = args_.d_weight.At(b_, h_, tap + k) + i;
      VF sum = hn::Add(even[k], odd[k]);
      if (!first) sum = hn::Add(access.Load(d, to), sum);
      access.Store(sum, d, to);
    }
  }

  const DF d_;
  const ShortConvBackwardArgs<float>& args_;
  const ShortConvShape& n_;
  const int64_t b_, h_, kept_;
  const Filter filter_;
  const short_conv::Chunk chunk_;
};

void BackwardItems(const ShortConvBackwardArgs<float>& args, int64_t begin, int64_t end, float* scratch) {
  ScratchCarver carve(scratch);
  const short_conv::Chunk chunk = short_conv::CarveChunk(args.shape, carve);
  const int64_t H = args.shape.H;
  for (int64_t item = begin; item < end; ++item) ItemGradients(args, chunk, item / H, item % H).Run();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <fmt/format.h>

#include <string>

namespace tensorcache {
namespace {

HWY_EXPORT(ForwardItems);
HWY_EXPORT(BackwardItems);

Status Bad(const std::string& what) { return InvalidArgument("short_conv: " + what); }

// Whether there are rows to read and write.
bool HasRows(const ShortConvShape& n) { return n.B > 0 && n.H > 0 && n.T > 0; }

// What forward and backward arguments have in common.
template <class Args>
Status CheckInputs(const Args& args) {
  const ShortConvShape& n = args.shape;
  if (n.B < 0 || n.H < 0 || n.T < 0 || n.D < 1) {
    return Bad(
        fmt::format("B, H and T must be >= 0 and D >= 1; got B = {}, H = {}, T = {}, D = {}", n.B, n.H, n.T, n.D));
  }
  if (n.taps < 0 || n.taps > kMaxShortConvTaps) {
    return Bad(fmt::format("0 to {} taps; got {}", kMaxShortConvTaps, n.taps));
  }
  // So that no index overflows.
  constexpr int64_t kMost = int64_t{1} << 30;
  for (const int64_t size : {n.B, n.H, n.T, n.D}) {
    if (size > kMost) return Bad(fmt::format("a size of {} is too large", size));
  }
  if (HasRows(n) && !args.x) return Bad("x is missing");
  if (n.B > 0 && n.H > 0 && n.taps > 0 && args.weight == nullptr) {
    return Bad(fmt::format("{} taps but no weight", n.taps));
  }
  return OkStatus();
}

void CheckItems(const ShortConvShape& n, int64_t begin, int64_t end) {
  TC_CHECK(0 <= begin && begin <= end && end <= n.B * n.H);
}

}  // namespace

template <class Real>
Status ValidateShortConv(const ShortConvForwardArgs<Real>& args) {
  TC_RETURN_IF_ERROR(CheckInputs(args));
  if (HasRows(args.shape) && !args.y) return Bad("y is missing");
  return OkStatus();
}

template <class Real>
Status ValidateShortConvBackward(const ShortConvBackwardArgs<Real>& args) {
  TC_RETURN_IF_ERROR(CheckInputs(args));
  if (HasRows(args.shape) && !args.d_y) return Bad("d_y is missing");
  return OkStatus();
}

template Status ValidateShortConv(const ShortConvForwardArgs<float>&);
template Status ValidateShortConv(const ShortConvForwardArgs<double>&);
template Status ValidateShortConvBackward(const ShortConvBackwardArgs<float>&);
template Status ValidateShortConvBackward(const ShortConvBackwardArgs<double>&);

int64_t ShortConvBackwardScratchFloats(const ShortConvShape& shape) {
  ScratchCarver carve(nullptr);
  (void)short_conv::CarveChunk(shape, carve);
  return carve.floats();
}

void ShortConvForward(const ShortConvForwardArgs<float>& args, int64_t begin_item, int64_t end_item) {
  CheckItems(args.shape, begin_item, end_item);
  HWY_DYNAMIC_DISPATCH(ForwardItems)(args, begin_item, end_item);
}

void ShortConvBackward(const ShortConvBackwardArgs<float>& args, int64_t begin_item, int64_t end_item, float* scratch) {
  CheckItems(args.shape, begin_item, end_item);
  HWY_DYNAMIC_DISPATCH(BackwardItems)(args, begin_item, end_item, scratch);
}

}  // namespace tensorcache
#endif  // HWY_ONCE
