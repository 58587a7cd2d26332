// Moving rows of user arrays in and out of padded scratch tiles, and masking logits.
//
// Include inside a Highway foreach_target translation unit only.

#if defined(TENSORCACHE_WINDOW_ATTENTION_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORCACHE_WINDOW_ATTENTION_ROWS_INL_H_
#undef TENSORCACHE_WINDOW_ATTENTION_ROWS_INL_H_
#else
#define TENSORCACHE_WINDOW_ATTENTION_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/simd/row-inl.h"
#include "kernels/simd/tile_gemm-inl.h"
#include "kernels/window_attention/tiling.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {
namespace wa = ::tensorcache::window_attention;

// One row per lane of the tile, times `factor`, into (lanes, padded width) with zeros in the padding and in the lanes
// up to the next multiple of kTilePad.
inline void LoadQueryRows(const wa::QueryTile& tile, const Rows<const float>& rows, int64_t b, int64_t first_head,
                          int64_t width, float factor, float* to) {
  const int64_t padded = TilePadded(width);
  for (int64_t lane = 0; lane < tile.padded_lanes(); ++lane, to += padded) {
    const int64_t filled = lane < tile.lanes() ? width : 0;
    if (filled > 0) ScaleRow(factor, rows.At(b, first_head + tile.head(lane), tile.token(lane)), width, to);
    std::fill(to + filled, to + padded, 0.0f);
  }
}

// The reverse: out[lane] = factors[lane] * column `lane` of from_t (width, kLanes); `rows` is room for (lanes, padded
// width).
inline void StoreQueryRows(const wa::QueryTile& tile, const float* from_t, const float* factors, int64_t width,
                           float* rows, const Rows<float>& out, int64_t b, int64_t first_head) {
  const int64_t padded = TilePadded(width);
  TileTranspose(from_t, wa::kLanes, width, tile.lanes(), rows, padded);
  for (int64_t lane = 0; lane < tile.lanes(); ++lane) {
    ScaleRow(factors[lane], rows + lane * padded, width, out.At(b, first_head + tile.head(lane), tile.token(lane)));
  }
}

// Sets the logits of lanes in `computed` that are not in `seen` to -inf.
HWY_INLINE void MaskRow(float* logits, wa::LaneRange computed, wa::LaneRange seen) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  for (int64_t lane = computed.begin; lane < std::min(seen.begin, computed.end); ++lane) logits[lane] = kMasked;
  for (int64_t lane = std::max(seen.end, computed.begin); lane < computed.end; ++lane) logits[lane] = kMasked;
}

// A tile of keys against a tile of queries. `lanes` is what is computed: whole multiples of kTilePad.
struct KeyTile {
  wa::KeyRun keys;
  wa::LaneRange lanes;
  bool sinks;   // keys.first is a sink index
  bool masked;  // some lanes see only some of the keys
};

HWY_INLINE wa::LaneRange SeenLanes(const wa::QueryTile& tile, const KeyTile& keys, int64_t row) {
  return keys.sinks ? tile.SinkLanes(keys.keys.first + row) : tile.KeyLanes(keys.keys.first + row);
}

// logits (count, kLanes) = K q_t on the tile's lanes, -inf where a lane does not see the key.
HWY_INLINE void Logits(const wa::QueryTile& tile, const KeyTile& keys, int64_t D, const float* q_t, float* logits) {
  const int64_t first = keys.lanes.begin;
  TileGemm({keys.keys.count, keys.lanes.end - first, D}, {keys.keys.k, keys.keys.k_row, 1}, {q_t + first, wa::kLanes},
           {logits + first, wa::kLanes});
  if (!keys.masked) return;
  for (int64_t row = 0; row < keys.keys.count; ++row) {
    MaskRow(logits + row * wa::kLanes, keys.lanes, SeenLanes(tile, keys, row));
  }
}

// Cuts a run into tiles and calls visit(KeyTile). Tiles of interior keys have kKeys rows and all lanes; tiles that the
// mask cuts have kEdgeKeys rows and only the lanes that see one of them. No tile straddles a multiple of kKeys.
template <class Visit>
HWY_INLINE void CutRun(const wa::QueryTile& tile, const wa::KeyRun& run, bool sinks, bool masked, const Visit& visit) {
  const int64_t step = masked ? wa::kEdgeKeys : wa::kKeys;
  const int64_t end = run.first + run.count;
  for (int64_t n = run.first; n < end;) {
    const int64_t next = std::min(end, (n / step + 1) * step);
    const int64_t offset = n - run.first;
    KeyTile keys{.keys = {run.k + offset * run.k_row, run.v + offset * run.v_row, run.k_row, run.v_row, n, next - n},
                 .lanes = {0, tile.padded_lanes()},
                 .sinks = sinks,
                 .masked = masked};
    if (masked) {
      keys.lanes.begin = SeenLanes(tile, keys, 0).begin / kTilePad * kTilePad;
      keys.lanes.end = TilePadded(SeenLanes(tile, keys, next - n - 1).end);
    }
    visit(keys);
    n = next;
  }
}

// All tiles of keys in the window of a query tile, in order: first those some lanes have already dropped, then those
// all lanes see, then the diagonal.
template <class Visit>
inline void ForEachWindowTile(const WindowAttentionArgs<float>& args, const wa::QueryTile& tile, int64_t b, int64_t g,
                              const Visit& visit) {
  const int64_t begin = tile.first_key(), end = tile.end_key();
  // On multiples of kEdgeKeys, so that no tile has just a few rows.
  int64_t full_begin = (tile.first_full() + wa::kEdgeKeys - 1) / wa::kEdgeKeys * wa::kEdgeKeys;
  int64_t full_end = tile.end_full() / wa::kEdgeKeys * wa::kEdgeKeys;
  if (full_begin >= full_end) full_begin = full_end = end;
  const auto cut = [&](int64_t from, int64_t to, bool masked) {
    wa::ForEachRun(args, b, g, from, to, [&](const wa::KeyRun& run) { CutRun(tile, run, false, masked, visit); });
  };
  cut(begin, full_begin, true);
  cut(full_begin, full_end, false);
  cut(full_end, end, true);
}

template <class Visit>
inline void ForEachSinkTile(const WindowAttentionArgs<float>& args, const wa::QueryTile& tile, int64_t b, int64_t g,
                            const Visit& visit) {
  const auto cut = [&](int64_t from, int64_t to, bool masked) {
    if (from >= to) return;
    const wa::KeyRun run{
        args.sink_k.At(b, g, from), args.sink_v.At(b, g, from), args.sink_k.token, args.sink_v.token, from, to - from};
    CutRun(tile, run, true, masked, visit);
  };
  cut(0, tile.end_full_sink(), false);
  cut(tile.end_full_sink(), tile.end_sink(), true);
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#endif  // include guard
