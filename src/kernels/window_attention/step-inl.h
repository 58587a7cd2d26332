// The decode step: one query per head against a ring, one pass over keys and values. Bound by memory, so that the
// vectors run along D (no transposition) and every load of a key or value serves all heads of the item.
//
// Include inside a Highway foreach_target translation unit only.

#if defined(TENSORCACHE_WINDOW_ATTENTION_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORCACHE_WINDOW_ATTENTION_STEP_INL_H_
#undef TENSORCACHE_WINDOW_ATTENTION_STEP_INL_H_
#else
#define TENSORCACHE_WINDOW_ATTENTION_STEP_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <limits>

#include "kernels/simd/exp-inl.h"
#include "kernels/window_attention/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {

// A row of `width` floats as whole vectors. The last one is moved back so that it ends with the row: no read or write
// outside the row, at the price of an overlap. Needs width >= lanes.
template <class Tag>
struct RowVectors {
  explicit RowVectors(int64_t row_width)
      : width(row_width), lanes(static_cast<int64_t>(hn::Lanes(Tag()))), count((row_width + lanes - 1) / lanes) {}
  int64_t Offset(int64_t i) const { return std::min(i * lanes, width - lanes); }

  int64_t width, lanes, count;
};

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_ARCH_ARM_A64
inline constexpr int kStepHeads = 4;  // heads at a time: 16 accumulators of 32 registers
#else
inline constexpr int kStepHeads = 2;
#endif

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

// A block of keys and values: number i is row i / 4 of stream i % 4. Consecutive rows are four streams one row apart.
// From memory, four streams far apart are read faster: prefetchers follow each of them.
struct StepKeys {
  const float* k;
  const float* v;
  int64_t k_row, k_stream;  // strides
  int64_t v_row, v_stream;
  int64_t count;

  const float* K(int64_t i) const { return k + (i / 4) * k_row + (i % 4) * k_stream; }
};

// weights[r, i] = q_r . k_i for kHeads heads and `count` keys.
template <class Tag, int kHeads>
HWY_INLINE void StepDots(const RowVectors<Tag>& row, const float* q, int64_t q_row, const StepKeys& keys,
                         float* weights) {
  const Tag d;
  using V = hn::Vec<Tag>;
  for (int64_t i = 0; i < keys.count; i += 4) {
    // Past the end the last key stands in; what it gives is overwritten or masked.
    const float* k[4];
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j) k[j] = keys.K(std::min(i + j, keys.count - 1));
    V sum[kHeads][4];
#pragma GCC unroll 4
    for (int r = 0; r < kHeads; ++r) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = hn::Zero(d);
    for (int64_t c = 0; c < row.count; ++c) {
      const int64_t offset = row.Offset(c);
      const V k0 = hn::LoadU(d, k[0] + offset), k1 = hn::LoadU(d, k[1] + offset);
      const V k2 = hn::LoadU(d, k[2] + offset), k3 = hn::LoadU(d, k[3] + offset);
#pragma GCC unroll 4
      for (int r = 0; r < kHeads; ++r) {
        const V qv = hn::LoadU(d, q + r * q_row + c * row.lanes);
        sum[r][0] = hn::MulAdd(qv, k0, sum[r][0]);
        sum[r][1] = hn::MulAdd(qv, k1, sum[r][1]);
        sum[r][2] = hn::MulAdd(qv, k2, sum[r][2]);
        sum[r][3] = hn::MulAdd(qv, k3, sum[r][3]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kHeads; ++r) {
      StoreSums4(d, sum[r][0], sum[r][1], sum[r][2], sum[r][3], weights + r * wa::kStepKeys + i);
    }
  }
}

// out[r] = correction_r out[r] + sum_i weights[r, i] v_i for kHeads heads, kVectors vectors from the c-th.
template <class Tag, int kHeads, int kVectors>
HWY_INLINE void StepValues(const RowVectors<Tag>& row, int64_t c, const float* weights, const float* correction,
                           const StepKeys& keys, float* out, int64_t out_row) {
  const Tag d;
  using V = hn::Vec<Tag>;
  V sum[kHeads][kVectors];
  int64_t offset[kVectors];
#pragma GCC unroll 4
  for (int n = 0; n < kVectors; ++n) offset[n] = row.Offset(c + n);
#pragma GCC unroll 4
  for (int r = 0; r < kHeads; ++r) {
    const V factor = hn::Set(d, correction[r]);
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      sum[r][n] = hn::Mul(factor, hn::LoadU(d, out + r * out_row + (c + n) * row.lanes));
    }
  }
  const auto add = [&](int64_t i, const float* HWY_RESTRICT v) HWY_ATTR {
    V values[kVectors];
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) values[n] = hn::LoadU(d, v + offset[n]);
#pragma GCC unroll 4
    for (int r = 0; r < kHeads; ++r) {
      const V weight = hn::Set(d, weights[r * wa::kStepKeys + i]);
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) sum[r][n] = hn::MulAdd(weight, values[n], sum[r][n]);
    }
  };
  const float* v = keys.v;
  int64_t i = 0;
  for (; i + 4 <= keys.count; i += 4, v += keys.v_row) {
    for (int64_t j = 0; j < 4; ++j) add(i + j, v + j * keys.v_stream);
  }
  for (; i < keys.count; ++i, v += keys.v_stream) add(i, v);
#pragma GCC unroll 4
  for (int r = 0; r < kHeads; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) hn::StoreU(sum[r][n], d, out + r * out_row + (c + n) * row.lanes);
  }
}

// One block of keys for heads [r, r + kHeads).
template <class Tag, int kHeads>
HWY_NOINLINE void StepBlock(const WindowAttentionShape& shape, const StepKeys& keys, const wa::StepScratch& s,
                            int64_t r) {
  const int64_t q_row = TilePadded(shape.D), out_row = TilePadded(shape.Dv);
  float* weights = s.weights + r * wa::kStepKeys;
  StepDots<Tag, kHeads>(RowVectors<Tag>(shape.D), s.q + r * q_row, q_row, keys, weights);

  const TileTag d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  const int64_t padded = TilePadded(keys.count);
  for (int64_t h = 0; h < kHeads; ++h) {
    float* row = weights + h * wa::kStepKeys;
    std::fill(row + keys.count, row + padded, -std::numeric_limits<float>::infinity());
    auto max = hn::Set(d, s.max[r + h]);
    for (int64_t i = 0; i < padded; i += step) max = hn::Max(max, hn::LoadU(d, row + i));
    max = hn::MaxOfLanes(d, max);
    const auto correction = ExpNonPositive(d, hn::Sub(hn::Set(d, s.max[r + h]), max));
    auto sum = hn::Zero(d);
    for (int64_t i = 0; i < padded; i += step) {
      const auto weight = ExpNonPositive(d, hn::Sub(hn::LoadU(d, row + i), max));
      hn::StoreU(weight, d, row + i);
      sum = hn::Add(sum, weight);
    }
    s.correction[r + h] = hn::GetLane(correction);
    s.max[r + h] = hn::GetLane(max);
    s.sum[r + h] = s.sum[r + h] * s.correction[r + h] + hn::GetLane(hn::SumOfLanes(d, sum));
  }

  const RowVectors<Tag> row(shape.Dv);
  float* out = s.out + r * out_row;
  int64_t c = 0;
  for (; c + 4 <= row.count; c += 4) {
    StepValues<Tag, kHeads, 4>(row, c, weights, s.correction + r, keys, out, out_row);
  }
  for (; c < row.count; ++c) {
    StepValues<Tag, kHeads, 1>(row, c, weights, s.correction + r, keys, out, out_row);
  }
}

// All heads on one block.
template <class Tag>
inline void StepHeads(const WindowAttentionShape& shape, const StepKeys& keys, const wa::StepScratch& s) {
  int64_t r = 0;
  for (; r + kStepHeads <= s.R; r += kStepHeads) StepBlock<Tag, kStepHeads>(shape, keys, s, r);
  for (; r < s.R; ++r) StepBlock<Tag, 1>(shape, keys, s, r);
}

// Keys in blocks of at most kStepKeys, each in quarters as four streams; then the up to three rows that are left over.
template <class Tag>
inline void StepRun(const WindowAttentionShape& shape, const wa::KeyRun& run, const wa::StepScratch& s) {
  const int64_t quarter = run.count / 4;
  for (int64_t first = 0; first < quarter; first += wa::kStepKeys / 4) {
    const int64_t rows = std::min(wa::kStepKeys / 4, quarter - first);
    StepHeads<Tag>(shape,
                   {run.k + first * run.k_row, run.v + first * run.v_row, run.k_row, quarter * run.k_row, run.v_row,
                    quarter * run.v_row, 4 * rows},
                   s);
  }
  const int64_t rest = run.count - 4 * quarter;
  if (rest > 0) {
    StepHeads<Tag>(shape,
                   {run.k + 4 * quarter * run.k_row, run.v + 4 * quarter * run.v_row, 4 * run.k_row, run.k_row,
                    4 * run.v_row, run.v_row, rest},
                   s);
  }
}

// Queries as the vectors StepDots multiplies: where the last vector overlaps the one before, its queries are 0.
template <class Tag>
inline void LoadStepQueries(const WindowAttentionStepArgs<float>& args, const Rows<const float>& q, int64_t b,
                            int64_t first_head, const wa::StepScratch& s) {
  const RowVectors<Tag> row(args.shape.D);
  const float scale = static_cast<float>(wa::ScaleOf(args.scale, args.shape.D));
  for (int64_t r = 0; r < s.R; ++r) {
    const float* from = q.At(b, first_head + r, 0);
    float* to = s.q + r * TilePadded(args.shape.D);
    for (int64_t c = 0; c < row.count; ++c) {
      for (int64_t i = 0; i < row.lanes; ++i) {
        const int64_t at = row.Offset(c) + i;
        to[c * row.lanes + i] = at < c * row.lanes ? 0.0f : scale * from[at];
      }
    }
  }
}

template <class Tag>
inline void StepItem(const WindowAttentionStepArgs<float>& args, int64_t b, int64_t g, const wa::StepScratch& s) {
  const WindowAttentionShape& shape = args.shape;
  const int64_t first_head = g * s.R;
  std::fill(s.max, s.max + s.R, std::numeric_limits<float>::lowest());
  std::fill(s.sum, s.sum + s.R, 0.0f);
  std::fill(s.out, s.out + s.R * TilePadded(shape.Dv), 0.0f);

  const int64_t sinks = std::clamp<int64_t>(shape.position - shape.W + 1, 0, shape.S);
  if (sinks > 0) {
    LoadStepQueries<Tag>(args, args.q_sink ? args.q_sink : args.q, b, first_head, s);
    StepRun<Tag>(
        shape,
        wa::KeyRun{args.sink_k.At(b, g, 0), args.sink_v.At(b, g, 0), args.sink_k.token, args.sink_v.token, 0, sinks},
        s);
  }
  if (sinks == 0 || args.q_sink) LoadStepQueries<Tag>(args, args.q, b, first_head, s);
  for (int64_t n = 0; n <= shape.P;) {
    const int64_t slot = (args.ring.start + n) % args.ring.capacity;
    const int64_t count = std::min(args.ring.capacity - slot, shape.P + 1 - n);
    StepRun<Tag>(shape,
                 wa::KeyRun{args.ring.k.At(b, g, slot), args.ring.v.At(b, g, slot), args.ring.k.token,
                            args.ring.v.token, n, count},
                 s);
    n += count;
  }

  const Tag d;
  const RowVectors<Tag> row(shape.Dv);
  for (int64_t r = 0; r < s.R; ++r) {
    const auto factor = hn::Set(d, 1.0f / s.sum[r]);
    const float* from = s.out + r * TilePadded(shape.Dv);
    float* to = args.out.At(b, first_head + r, 0);
    for (int64_t c = 0; c < row.count; ++c) {
      hn::StoreU(hn::Mul(factor, hn::LoadU(d, from + c * row.lanes)), d, to + row.Offset(c));
    }
    if (args.lse) *args.lse.At(b, first_head + r, 0) = s.max[r] + std::log(s.sum[r]);
  }
}

template <class Tag>
inline void StepItemsWith(const WindowAttentionStepArgs<float>& args, int64_t begin_item, int64_t end_item,
                          float* scratch) {
  wa::ScratchCarver carve(scratch);
  const wa::StepScratch s(args.shape, carve);
  for (int64_t item = begin_item; item < end_item; ++item) {
    StepItem<Tag>(args, item / args.shape.G, item % args.shape.G, s);
  }
}

// The widest vectors that fit into the rows.
void StepItems(const WindowAttentionStepArgs<float>& args, int64_t begin_item, int64_t end_item, float* scratch) {
  const int64_t narrowest = std::min(args.shape.D, args.shape.Dv);
  if (narrowest >= static_cast<int64_t>(hn::Lanes(TileTag()))) {
    StepItemsWith<TileTag>(args, begin_item, end_item, scratch);
  } else if (narrowest >= 4) {
    StepItemsWith<hn::CappedTag<float, 4>>(args, begin_item, end_item, scratch);
  } else {
    StepItemsWith<hn::CappedTag<float, 1>>(args, begin_item, end_item, scratch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#endif  // include guard
