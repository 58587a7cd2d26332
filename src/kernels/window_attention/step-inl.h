// The decode step: one query per head against a ring, one pass over keys and values. Bound by memory, so that the
// vectors run along D (no transposition) and every load of a key or value serves all heads of the item. How the ring is
// read is in step_streams-inl.h.
//
// Include inside a Highway foreach_target translation unit only.

#if defined(TENSORCACHE_WINDOW_ATTENTION_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORCACHE_WINDOW_ATTENTION_STEP_INL_H_
#undef TENSORCACHE_WINDOW_ATTENTION_STEP_INL_H_
#else
#define TENSORCACHE_WINDOW_ATTENTION_STEP_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/simd/exp-inl.h"
#include "kernels/simd/sums-inl.h"
#include "kernels/simd/tile_gemm-inl.h"
#include "kernels/window_attention/step_streams-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {

inline constexpr int kStepHeads = kVectorRegisters / 8;  // heads at a time: half of the registers are accumulators

// Only inlined code keeps its sums in registers. With a sanitizer they are not there anyway, and inlining makes the
// compiler take minutes.
#if !defined(STEP_INLINE)
#if HWY_IS_ASAN || HWY_IS_TSAN || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STEP_INLINE HWY_NOINLINE
#define STEP_INLINE_LAMBDA
#else
#define STEP_INLINE HWY_INLINE
#define STEP_INLINE_LAMBDA __attribute__((always_inline))
#endif
#endif

// Some heads of an item: their part of the scratch.
struct StepHeads {
  StepHeads(const WindowAttentionShape& shape, const wa::StepScratch& s, int64_t first)
      : q_row(TilePadded(shape.D)),
        out_row(TilePadded(shape.Dv)),
        q(s.q + first * q_row),
        out(s.out + first * out_row),
        weights(s.weights + first * wa::kStepKeys),
        max(s.max + first),
        sum(s.sum + first) {}

  int64_t q_row, out_row;
  float *q, *out, *weights, *max, *sum;
};

// weights[r, i] = q_r . k_i for kHeads heads and four keys. Asks for the rows `ahead` on the way.
template <class Row, int kHeads, class Source>
STEP_INLINE void StepDots4(const Row& row, const StepHeads& heads, const Source* const* k, const Source* const* ahead,
                           float* weights) {
  using Tag = typename Row::Tag;
  using V = typename Row::V;
  const Tag d;
  V sum[kHeads][4];
#pragma GCC unroll 4
  for (int r = 0; r < kHeads; ++r) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = hn::Zero(d);
  const auto add = [&](int64_t c, V k0, V k1, V k2, V k3) HWY_ATTR STEP_INLINE_LAMBDA {
#pragma GCC unroll 4
    for (int r = 0; r < kHeads; ++r) {
      const V q = hn::LoadU(d, heads.q + r * heads.q_row + c * row.lanes);
      sum[r][0] = hn::MulAdd(q, k0, sum[r][0]);
      sum[r][1] = hn::MulAdd(q, k1, sum[r][1]);
      sum[r][2] = hn::MulAdd(q, k2, sum[r][2]);
      sum[r][3] = hn::MulAdd(q, k3, sum[r][3]);
    }
  };
  const auto add_pair = [&](int64_t c) HWY_ATTR STEP_INLINE_LAMBDA {
    const int64_t at = c * row.lanes;
    V a0, a1, a2, a3, b0, b1, b2, b3;
    Row::LoadPair(k[0] + at, a0, b0);
    Row::LoadPair(k[1] + at, a1, b1);
    Row::LoadPair(k[2] + at, a2, b2);
    Row::LoadPair(k[3] + at, a3, b3);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) AskFor<Tag, 2>(ahead[j] + at);
    add(c, a0, a1, a2, a3);
    add(c + 1, b0, b1, b2, b3);
  };
  int64_t c = 0;
  for (; c + 4 <= row.whole; c += 4) {
    add_pair(c);
    add_pair(c + 2);
  }
  if (c + 2 <= row.whole) {
    add_pair(c);
    c += 2;
  }
  for (; c < row.count; ++c) {
    const int64_t at = row.Offset(c);
    add(c, Row::Load(k[0] + at), Row::Load(k[1] + at), Row::Load(k[2] + at), Row::Load(k[3] + at));
  }
#pragma GCC unroll 4
  for (int r = 0; r < kHeads; ++r) {
    StoreSums4(d, sum[r][0], sum[r][1], sum[r][2], sum[r][3], weights + r * wa::kStepKeys);
  }
}

// weights[r, i] = q_r . k_i for all keys of the block.
template <class Row, int kHeads, class Source>
STEP_INLINE void StepDots(const Row& row, const StepHeads& heads, const StepKeys<Source>& keys) {
  const StepPhase<Source> phase(keys.k, &keys.v, keys.count, row.width);
  for (int64_t n = 0; n < keys.count; n += 4) {
    // Past the end the last key stands in; what it gives is overwritten or masked.
    const int64_t s = n % kStreams, last = std::min(s + 4, s + keys.count - n) - 1;
    const auto now = phase.Now(n / kStreams), ahead = phase.Ahead(n / kStreams);
    const Source* k[4];
    const Source* asked[4];
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j) {
      k[j] = now[std::min(s + j, last)];
      asked[j] = ahead[s + j];
    }
    StepDots4<Row, kHeads>(row, heads, k, asked, heads.weights + n);
  }
}

// A part of a block's values: vectors from the c-th on of keys [begin, end).
struct StepPart {
  int64_t c, begin, end;
};

// out[r] += sum_i weights[r, i] v_i for kHeads heads and kVectors vectors: whole ones, or a single one.
template <class Row, int kHeads, int kVectors, class Source>
STEP_INLINE void StepValues(const Row& row, const StepHeads& heads, const StepPhase<Source>& phase, StepPart part) {
  using Tag = typename Row::Tag;
  using V = typename Row::V;
  const Tag d;
  float* out = heads.out + part.c * row.lanes;
  V sum[kHeads][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kHeads; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) sum[r][n] = hn::LoadU(d, out + r * heads.out_row + n * row.lanes);
  }
  const auto add = [&](int64_t i, const Source* HWY_RESTRICT v) HWY_ATTR STEP_INLINE_LAMBDA {
    V values[kVectors];
    if constexpr (kVectors == 1) {
      values[0] = Row::Load(v);
    } else {
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; n += 2) Row::LoadPair(v + n * row.lanes, values[n], values[n + 1]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kHeads; ++r) {
      const V weight = hn::Set(d, heads.weights[r * wa::kStepKeys + i]);
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) sum[r][n] = hn::MulAdd(weight, values[n], sum[r][n]);
    }
  };
  const int64_t at = row.Offset(part.c);
  int64_t i = part.begin;
  for (; i + kStreams <= part.end; i += kStreams) {
    const auto now = phase.Now(i / kStreams), ahead = phase.Ahead(i / kStreams);
#pragma GCC unroll 2
    for (int64_t s = 0; s < kStreams; ++s) {
      if constexpr (kVectors > 1) AskFor<Tag, kVectors>(ahead[s] + at);
      add(i + s, now[s] + at);
    }
  }
  for (int64_t s = 0; i + s < part.end; ++s) add(i + s, phase.Now(i / kStreams)[s] + at);
#pragma GCC unroll 4
  for (int r = 0; r < kHeads; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) hn::StoreU(sum[r][n], d, out + r * heads.out_row + n * row.lanes);
  }
}

// All columns of the values of keys [begin, end).
template <class Row, int kHeads, class Source>
STEP_INLINE void StepColumns(const Row& row, const StepHeads& heads, const StepPhase<Source>& phase, int64_t begin,
                             int64_t end) {
  int64_t c = 0;
  for (; c + 4 <= row.whole; c += 4) StepValues<Row, kHeads, 4>(row, heads, phase, {c, begin, end});
  if (c + 2 <= row.whole) {
    StepValues<Row, kHeads, 2>(row, heads, phase, {c, begin, end});
    c += 2;
  }
  for (; c < row.count; ++c) StepValues<Row, kHeads, 1>(row, heads, phase, {c, begin, end});
}

// The new running maximum of head h, and its sum and output corrected to it. Logits of the padding become -inf.
HWY_INLINE void StepMax(const StepHeads& heads, int64_t h, int64_t count) {
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  float* logits = heads.weights + h * wa::kStepKeys;
  float* out = heads.out + h * heads.out_row;
  const int64_t padded = TilePadded(count);
  std::fill(logits + count, logits + padded, -std::numeric_limits<float>::infinity());
  const auto before = hn::Set(d, heads.max[h]);
  auto max = before;
  for (int64_t i = 0; i < padded; i += lanes) max = hn::Max(max, hn::LoadU(d, logits + i));
  max = hn::MaxOfLanes(d, max);
  const auto correction = ExpNonPositive(d, hn::Sub(before, max));
  heads.max[h] = hn::GetLane(max);
  heads.sum[h] *= hn::GetLane(correction);
  for (int64_t i = 0; i < heads.out_row; i += lanes) {
    hn::StoreU(hn::Mul(correction, hn::LoadU(d, out + i)), d, out + i);
  }
}

// Logits of head h for keys [begin, end) to weights, which are added to its sum.
HWY_INLINE void StepExp(const StepHeads& heads, int64_t h, int64_t begin, int64_t end) {
  const TileTag d;
  float* weights = heads.weights + h * wa::kStepKeys;
  const auto max = hn::Set(d, heads.max[h]);
  auto sum = hn::Zero(d);
  for (int64_t i = begin; i < end; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto weight = ExpNonPositive(d, hn::Sub(hn::LoadU(d, weights + i), max));
    hn::StoreU(weight, d, weights + i);
    sum = hn::Add(sum, weight);
  }
  heads.sum[h] += hn::GetLane(hn::SumOfLanes(d, sum));
}

// One block of keys for kHeads heads from the r-th; `next_k` is read afterwards. The weights are made in chunks beside
// their values, so that reading never pauses for long, and the values stay in the first-level cache for all columns.
template <class Row, int kHeads, class Source>
HWY_NOINLINE void StepBlock(const WindowAttentionShape& shape, const StepKeys<Source>& keys,
                            const StepStreams<Source>* next_k, const wa::StepScratch& scratch, int64_t r) {
  static_assert(wa::kStepChunk % kStreams == 0 && wa::kStepChunk % kTilePad == 0);
  const StepHeads heads(shape, scratch, r);
  StepDots<Row, kHeads>(Row(shape.D), heads, keys);
  for (int64_t h = 0; h < kHeads; ++h) StepMax(heads, h, keys.count);
  const Row row(shape.Dv);
  const StepPhase<Source> phase(keys.v, next_k, keys.count, row.width);
  for (int64_t begin = 0; begin < keys.count; begin += wa::kStepChunk) {
    const int64_t end = std::min(begin + wa::kStepChunk, keys.count);
    for (int64_t h = 0; h < kHeads; ++h) StepExp(heads, h, begin, TilePadded(end));
    StepColumns<Row, kHeads>(row, heads, phase, begin, end);
  }
}

// All heads on one block; several at a time only where it pays for the code: not in narrow rows, not for the few sinks
// beside a ring of bf16.
template <class Row, class Source>
inline void StepAllHeads(const WindowAttentionShape& shape, const StepKeys<Source>& keys,
                         const StepStreams<Source>* next_k, const wa::StepScratch& s) {
  int64_t r = 0;
  if constexpr (std::is_same_v<typename Row::Tag, TileTag> && std::is_same_v<Source, typename Row::Stored>) {
    for (; r + kStepHeads <= s.R; r += kStepHeads) StepBlock<Row, kStepHeads>(shape, keys, next_k, s, r);
  }
  for (; r < s.R; ++r) StepBlock<Row, 1>(shape, keys, next_k, s, r);
}

// Queries as the vectors StepDots multiplies: where the last vector overlaps the one before, its queries are 0.
template <class Row, class Stored>
inline void LoadStepQueries(const WindowAttentionStepArgs<float, Stored>& args, const Rows<const float>& q, int64_t b,
                            int64_t first_head, const wa::StepScratch& s) {
  const typename Row::Tag d;
  const Row row(args.shape.D);
  const float scale = static_cast<float>(wa::ScaleOf(args.scale, args.shape.D));
  const auto factor = hn::Set(d, scale);
  for (int64_t r = 0; r < s.R; ++r) {
    const float* from = q.At(b, first_head + r, 0);
    float* to = s.q + r * TilePadded(args.shape.D);
    int64_t c = 0;
    for (; c + 2 <= row.whole; c += 2) {
      typename Row::V x, y;
      Row::LoadPair(from + c * row.lanes, x, y);
      hn::StoreU(hn::Mul(factor, x), d, to + c * row.lanes);
      hn::StoreU(hn::Mul(factor, y), d, to + (c + 1) * row.lanes);
    }
    for (; c < row.count; ++c) {
      for (int64_t i = 0; i < row.lanes; ++i) {
        const int64_t at = row.Offset(c) + i;
        to[c * row.lanes + i] = at < c * row.lanes ? 0.0f : scale * from[at];
      }
    }
  }
}

template <class Row, class Stored>
inline void StoreStepOutputs(const WindowAttentionStepArgs<float, Stored>& args, int64_t b, int64_t first_head,
                             const wa::StepScratch& s) {
  const typename Row::Tag d;
  const Row row(args.shape.Dv);
  for (int64_t r = 0; r < s.R; ++r) {
    const auto factor = hn::Set(d, 1.0f / s.sum[r]);
    const float* from = s.out + r * TilePadded(args.shape.Dv);
    float* to = args.out.At(b, first_head + r, 0);
    const auto scaled = [&](int64_t c) HWY_ATTR { return hn::Mul(factor, hn::LoadU(d, from + c * row.lanes)); };
    int64_t c = 0;
    for (; c + 2 <= row.whole; c += 2) Row::StorePair(scaled(c), scaled(c + 1), to + c * row.lanes);
    for (; c < row.count; ++c) hn::StoreU(scaled(c), d, to + row.Offset(c));
    if (args.lse) *args.lse.At(b, first_head + r, 0) = s.max[r] + std::log(s.sum[r]);
  }
}

template <class Row, class Stored>
inline void StepSinks(const WindowAttentionStepArgs<float, Stored>& args, int64_t b, int64_t g, int64_t sinks,
                      const wa::StepScratch& s) {
  const wa::KeyRun run{
      args.sink_k.At(b, g, 0), args.sink_v.At(b, g, 0), args.sink_k.token, args.sink_v.token, 0, sinks};
  for (int64_t done = 0; done < sinks;) {
    const StepKeys<float> keys = CutBlock(run, done);
    StepAllHeads<Row>(args.shape, keys, static_cast<const StepStreams<float>*>(nullptr), s);
    done += keys.count;
  }
}

// One item; items up to end_item follow.
template <class Row, class Stored>
inline void StepItem(const WindowAttentionStepArgs<float, Stored>& args, int64_t item, int64_t end_item,
                     const wa::StepScratch& s) {
  const WindowAttentionShape& shape = args.shape;
  const int64_t b = item / shape.G, g = item % shape.G, first_head = g * s.R;
  std::fill(s.max, s.max + s.R, std::numeric_limits<float>::lowest());
  std::fill(s.sum, s.sum + s.R, 0.0f);
  std::fill(s.out, s.out + s.R * TilePadded(shape.Dv), 0.0f);

  const int64_t sinks = std::clamp<int64_t>(shape.position - shape.W + 1, 0, shape.S);
  if (sinks > 0) {
    LoadStepQueries<Row>(args, args.q_sink ? args.q_sink : args.q, b, first_head, s);
    StepSinks<Row>(args, b, g, sinks, s);
  }
  if (sinks == 0 || args.q_sink) LoadStepQueries<Row>(args, args.q, b, first_head, s);
  StepKeys<Stored> keys = RingBlock(args, item, 0);
  for (int64_t done = 0; done <= shape.P;) {
    done += keys.count;
    const bool last = done > shape.P, last_of_all = last && item + 1 == end_item;
    const StepKeys<Stored> next = last_of_all ? keys
                                  : last      ? RingBlock(args, item + 1, 0)
                                              : RingBlock(args, item, done);
    StepAllHeads<Row>(shape, keys, last_of_all ? nullptr : &next.k, s);
    keys = next;
  }
  StoreStepOutputs<Row>(args, b, first_head, s);
}

template <class Tag, class Stored>
inline void StepItemsWith(const WindowAttentionStepArgs<float, Stored>& args, int64_t begin_item, int64_t end_item,
                          float* scratch) {
  ScratchCarver carve(scratch);
  const wa::StepScratch s(args.shape, carve);
  for (int64_t item = begin_item; item < end_item; ++item) {
    StepItem<StepRow<Tag, Stored>>(args, item, end_item, s);
  }
}

// The widest vectors that fit into the rows.
template <class Stored>
inline void StepItemsOf(const WindowAttentionStepArgs<float, Stored>& args, int64_t begin_item, int64_t end_item,
                        float* scratch) {
  const int64_t narrowest = std::min(args.shape.D, args.shape.Dv);
  if (narrowest >= static_cast<int64_t>(hn::Lanes(TileTag()))) {
    StepItemsWith<TileTag>(args, begin_item, end_item, scratch);
  } else if (narrowest >= 4) {
    StepItemsWith<hn::CappedTag<float, 4>>(args, begin_item, end_item, scratch);
  } else {
    StepItemsWith<hn::CappedTag<float, 1>>(args, begin_item, end_item, scratch);
  }
}

inline void StepItems(const WindowAttentionStepArgs<float>& args, int64_t begin_item, int64_t end_item,
                      float* scratch) {
  StepItemsOf(args, begin_item, end_item, scratch);
}

inline void StepItemsBf16(const WindowAttentionStepArgs<float, uint16_t>& args, int64_t begin_item, int64_t end_item,
                          float* scratch) {
  StepItemsOf(args, begin_item, end_item, scratch);
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#endif  // include guard
