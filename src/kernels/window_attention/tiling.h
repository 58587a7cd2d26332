// How window attention is cut into tiles, the same on every SIMD target: sizes, scratch layouts, and which keys and
// lanes a tile of queries sees. Internal to the kernel.
//
// The queries of an item are numbered u = token * R + r over its R query heads, so that heads which share keys sit side
// by side; a query tile is kLanes consecutive u, one SIMD lane each. Keys are numbered n = 0 .. P-1 (past), P .. P+T-1
// (block).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "kernels/simd/scratch_carver.h"
#include "kernels/simd/tile.h"
#include "tensorcache/kernels/window_attention.h"

namespace tensorcache::window_attention {

inline constexpr int64_t kLanes = 64;     // queries of a tile
inline constexpr int64_t kKeys = 64;      // keys of an interior tile
inline constexpr int64_t kEdgeKeys = 16;  // keys of a tile that the mask cuts

// The decode step.
inline constexpr int64_t kStepKeys = 512;    // keys of a block, at most
inline constexpr int64_t kStepStreams = 8;   // parts of a run that are read side by side
inline constexpr int64_t kStepChunk = 32;    // keys whose values are read at a time
inline constexpr int64_t kStepAhead = 2048;  // bytes ahead in each stream that are asked for

// Consecutive keys at a constant stride.
template <class Stored>
struct KeyRunOf {
  const Stored* k;
  const Stored* v;
  int64_t k_row, v_row;
  int64_t first;  // n of the first key (sinks: s)
  int64_t count;
};
using KeyRun = KeyRunOf<float>;

struct LaneRange {
  int64_t begin, end;
};

// One tile of queries and what it sees.
class QueryTile {
 public:
  QueryTile(const WindowAttentionShape& shape, int64_t first_query)
      : shape_(shape),
        R_(shape.H / shape.G),
        W_(std::min(shape.W, shape.P + shape.T)),
        u_(first_query),
        lanes_(std::min(kLanes, shape.T * R_ - first_query)) {}

  int64_t lanes() const { return lanes_; }
  int64_t padded_lanes() const { return TilePadded(lanes_); }
  int64_t token(int64_t lane) const { return (u_ + lane) / R_; }
  int64_t head(int64_t lane) const { return (u_ + lane) % R_; }  // within the group

  // Keys that at least one lane sees: [first_key, end_key); those that all lanes see: [first_full, end_full), maybe
  // empty.
  int64_t first_key() const { return std::max<int64_t>(0, shape_.P + token(0) - W_ + 1); }
  int64_t end_key() const { return shape_.P + token(lanes_ - 1) + 1; }
  int64_t first_full() const { return std::max<int64_t>(0, shape_.P + token(lanes_ - 1) - W_ + 1); }
  int64_t end_full() const { return shape_.P + token(0) + 1; }

  // The lanes that see key n.
  LaneRange KeyLanes(int64_t n) const {
    return {std::max<int64_t>(0, (n - shape_.P) * R_ - u_), std::min(lanes_, (n - shape_.P + W_) * R_ - u_)};
  }

  // Sinks that at least one lane, and that every lane sees: s <= position + token - W.
  int64_t end_sink() const { return SinksSeen(token(lanes_ - 1)); }
  int64_t end_full_sink() const { return SinksSeen(token(0)); }
  LaneRange SinkLanes(int64_t s) const {
    const int64_t first_token = s + shape_.W - shape_.position;  // s < end_sink(), so this is below T
    return {std::max<int64_t>(0, first_token * R_ - u_), lanes_};
  }

 private:
  int64_t SinksSeen(int64_t token) const {
    return std::clamp<int64_t>(shape_.position + token - shape_.W + 1, 0, shape_.S);
  }

  const WindowAttentionShape& shape_;
  int64_t R_, W_, u_, lanes_;
};

// Calls visit(KeyRun) for the keys [begin, end) of the past ring and the block, in order. A run never straddles P.
template <class Visit>
void ForEachRun(const WindowAttentionArgs<float>& args, int64_t b, int64_t g, int64_t begin, int64_t end,
                const Visit& visit) {
  const int64_t P = args.shape.P;
  for (int64_t n = begin; n < std::min(end, P);) {
    const int64_t slot = (args.past.start + n) % args.past.capacity;
    const int64_t count = std::min({args.past.capacity - slot, P - n, end - n});
    const KeyValueRing<float>& past = args.past;
    visit(KeyRun{past.k.At(b, g, slot), past.v.At(b, g, slot), past.k.token, past.v.token, n, count});
    n += count;
  }
  const int64_t n = std::max(begin, P);
  if (n < end) visit(KeyRun{args.k.At(b, g, n - P), args.v.At(b, g, n - P), args.k.token, args.v.token, n, end - n});
}

// Names ending in _t are transposed: one row per dimension, kLanes wide.
struct ForwardScratch {
  ForwardScratch(const WindowAttentionShape& shape, ScratchCarver& carve)
      : rows(carve.Take(kLanes * TilePadded(std::max(shape.D, shape.Dv)))),
        q_t(carve.Take(shape.D * kLanes)),
        out_t(carve.Take(shape.Dv * kLanes)),
        weights(carve.Take(kKeys * kLanes)),
        max(carve.Take(kLanes)),
        sum(carve.Take(kLanes)),
        correction(carve.Take(kLanes)) {}

  float* rows;       // (kLanes, D or Dv padded): scaled queries on the way in, outputs on the way out
  float* q_t;        // (D, kLanes)
  float* out_t;      // (Dv, kLanes), not yet divided by the sum
  float* weights;    // (kKeys, kLanes): logits, then exp(logit - max)
  float *max, *sum;  // running, per lane
  float* correction;
};

struct BackwardScratch {
  BackwardScratch(const WindowAttentionShape& shape, ScratchCarver& carve)
      : D_padded(TilePadded(shape.D)),
        Dv_padded(TilePadded(shape.Dv)),
        ring_rows(RingRows(shape)),
        q(carve.Take(kLanes * D_padded)),
        q_t(carve.Take(shape.D * kLanes)),
        dout(carve.Take(kLanes * Dv_padded)),
        dout_t(carve.Take(shape.Dv * kLanes)),
        dq_t(carve.Take(shape.D * kLanes)),
        weights(carve.Take(kKeys * kLanes)),
        dlogits(carve.Take(kKeys * kLanes)),
        lse(carve.Take(kLanes)),
        delta(carve.Take(kLanes)),
        dk(carve.Take(ring_rows * D_padded)),
        dv(carve.Take(ring_rows * Dv_padded)),
        dsink_k(carve.Take(shape.S * D_padded)),
        dsink_v(carve.Take(shape.S * Dv_padded)) {}

  // The keys one query tile sees, rounded up so that a tile of keys aligned to kKeys never straddles the end.
  static int64_t RingRows(const WindowAttentionShape& shape) {
    const int64_t keys = shape.P + shape.T;
    const int64_t live = shape.W < keys ? std::min(shape.W + kLanes, keys) : keys;
    return (live + kKeys - 1) / kKeys * kKeys;
  }

  int64_t D_padded, Dv_padded, ring_rows;
  float *q, *q_t;            // (kLanes, D padded) and (D, kLanes), scaled
  float *dout, *dout_t;      // (kLanes, Dv padded) and (Dv, kLanes)
  float* dq_t;               // (D, kLanes)
  float *weights, *dlogits;  // (kKeys, kLanes)
  float *lse, *delta;        // per lane
  float *dk, *dv;            // (ring_rows, padded): gradient of key n at row n % ring_rows
  float *dsink_k, *dsink_v;
};

// A step reads each key and value once, for all R heads of the item. Rows are in whole vectors of at most kTilePad
// floats.
struct StepScratch {
  StepScratch(const WindowAttentionShape& shape, ScratchCarver& carve)
      : R(shape.H / shape.G),
        q(carve.Take(R * TilePadded(shape.D))),
        out(carve.Take(R * TilePadded(shape.Dv))),
        weights(carve.Take(R * kStepKeys)),
        max(carve.Take(R)),
        sum(carve.Take(R)) {}

  int64_t R;
  float* q;          // (R, D padded), scaled; vectors in the order of the step
  float* out;        // (R, Dv padded), not yet divided by the sum; likewise
  float* weights;    // (R, kStepKeys): logits, then exp(logit - max)
  float *max, *sum;  // (R), running
};

inline Status CheckItems(const WindowAttentionShape& shape, int64_t begin, int64_t end) {
  const int64_t items = shape.B * shape.G;
  if (begin >= 0 && begin <= end && end <= items) return OkStatus();
  return InvalidArgument("window_attention: items " + std::to_string(begin) + " .. " + std::to_string(end) +
                         " outside 0 .. B * G = " + std::to_string(items));
}

inline double ScaleOf(const std::optional<double>& scale, int64_t D) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(D)));
}

}  // namespace tensorcache::window_attention
