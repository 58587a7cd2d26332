// Forward pass: one tile of queries at a time, streaming softmax over tiles of keys.
//
// Include inside a Highway foreach_target translation unit only.

#if defined(TENSORCACHE_WINDOW_ATTENTION_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORCACHE_WINDOW_ATTENTION_FORWARD_INL_H_
#undef TENSORCACHE_WINDOW_ATTENTION_FORWARD_INL_H_
#else
#define TENSORCACHE_WINDOW_ATTENTION_FORWARD_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <limits>

#include "kernels/simd/exp-inl.h"
#include "kernels/window_attention/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {

// The streaming softmax step on `count` rows of logits: weights = exp(logit - max) under the new maximum, sums updated,
// and correction = exp(old max - new max), the factor for what was summed before. Returns whether any factor is not 1.
inline bool SoftmaxTile(const wa::ForwardScratch& s, wa::LaneRange lanes, int64_t count) {
  const TileTag d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  bool changed = false;
  for (int64_t lane = lanes.begin; lane < lanes.end; lane += step) {
    float* HWY_RESTRICT column = s.weights + lane;
    const auto old_max = hn::LoadU(d, s.max + lane);
    auto max0 = old_max, max1 = old_max;
    int64_t row = 0;
    for (; row + 2 <= count; row += 2) {
      max0 = hn::Max(max0, hn::LoadU(d, column + row * wa::kLanes));
      max1 = hn::Max(max1, hn::LoadU(d, column + (row + 1) * wa::kLanes));
    }
    if (row < count) max0 = hn::Max(max0, hn::LoadU(d, column + row * wa::kLanes));
    const auto max = hn::Max(max0, max1);

    const auto correction = ExpNonPositive(d, hn::Sub(old_max, max));
    auto sum = hn::Mul(hn::LoadU(d, s.sum + lane), correction);
    for (row = 0; row < count; ++row) {
      const auto weight = ExpNonPositive(d, hn::Sub(hn::LoadU(d, column + row * wa::kLanes), max));
      hn::StoreU(weight, d, column + row * wa::kLanes);
      sum = hn::Add(sum, weight);
    }
    hn::StoreU(max, d, s.max + lane);
    hn::StoreU(sum, d, s.sum + lane);
    hn::StoreU(correction, d, s.correction + lane);
    changed = changed || !hn::AllTrue(d, hn::Eq(correction, hn::Set(d, 1.0f)));
  }
  return changed;
}

inline void ForwardTile(const wa::QueryTile& tile, const KeyTile& keys, const WindowAttentionShape& shape,
                        const wa::ForwardScratch& s) {
  const TileTag d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  Logits(tile, keys, shape.D, s.q_t, s.weights);
  if (SoftmaxTile(s, keys.lanes, keys.keys.count)) {
    for (int64_t row = 0; row < shape.Dv; ++row) {
      float* HWY_RESTRICT out = s.out_t + row * wa::kLanes;
      for (int64_t lane = keys.lanes.begin; lane < keys.lanes.end; lane += step) {
        hn::StoreU(hn::Mul(hn::LoadU(d, out + lane), hn::LoadU(d, s.correction + lane)), d, out + lane);
      }
    }
  }
  TileGemm({shape.Dv, keys.lanes.end - keys.lanes.begin, keys.keys.count}, {keys.keys.v, 1, keys.keys.v_row},
           {s.weights + keys.lanes.begin, wa::kLanes}, {s.out_t + keys.lanes.begin, wa::kLanes},
           {.store = TileStore::kAdd});
}

inline void ForwardQueryTile(const WindowAttentionArgs<float>& args, const wa::QueryTile& tile, int64_t b, int64_t g,
                             const wa::ForwardScratch& s) {
  const WindowAttentionShape& shape = args.shape;
  const int64_t first_head = g * (shape.H / shape.G);
  const float scale = static_cast<float>(wa::ScaleOf(args.scale, shape.D));
  const auto visit = [&](const KeyTile& keys) { ForwardTile(tile, keys, shape, s); };
  const auto load_queries = [&](const Rows<const float>& q) {
    LoadQueryRows(tile, q, b, first_head, shape.D, scale, s.rows);
    TileTranspose(s.rows, TilePadded(shape.D), tile.padded_lanes(), shape.D, s.q_t, wa::kLanes);
  };

  // Finite, so that max - max is 0 for a lane that has seen nothing yet.
  std::fill(s.max, s.max + wa::kLanes, std::numeric_limits<float>::lowest());
  std::fill(s.sum, s.sum + wa::kLanes, 0.0f);
  std::fill(s.out_t, s.out_t + shape.Dv * wa::kLanes, 0.0f);
  const bool sinks = tile.end_sink() > 0;
  if (sinks) {
    load_queries(args.q_sink ? args.q_sink : args.q);
    ForEachSinkTile(args, tile, b, g, visit);
  }
  if (!sinks || args.q_sink) load_queries(args.q);
  ForEachWindowTile(args, tile, b, g, visit);

  for (int64_t lane = 0; lane < tile.lanes(); ++lane) {
    if (args.lse) *args.lse.At(b, first_head + tile.head(lane), tile.token(lane)) = s.max[lane] + std::log(s.sum[lane]);
    s.correction[lane] = 1.0f / s.sum[lane];
  }
  StoreQueryRows(tile, s.out_t, s.correction, shape.Dv, s.rows, args.out, b, first_head);
}

inline void ForwardItems(const WindowAttentionArgs<float>& args, int64_t begin_item, int64_t end_item, float* scratch) {
  const WindowAttentionShape& shape = args.shape;
  ScratchCarver carve(scratch);
  const wa::ForwardScratch s(shape, carve);
  const int64_t queries = shape.T * (shape.H / shape.G);
  for (int64_t item = begin_item; item < end_item; ++item) {
    for (int64_t u = 0; u < queries; u += wa::kLanes) {
      ForwardQueryTile(args, wa::QueryTile(shape, u), item / shape.G, item % shape.G, s);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#endif  // include guard
