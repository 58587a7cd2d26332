// Backward pass by recomputation: the weights of each tile again from q, k and lse, then the five products.
//
// Include inside a Highway foreach_target translation unit only.

#if defined(TENSORCACHE_WINDOW_ATTENTION_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORCACHE_WINDOW_ATTENTION_BACKWARD_INL_H_
#undef TENSORCACHE_WINDOW_ATTENTION_BACKWARD_INL_H_
#else
#define TENSORCACHE_WINDOW_ATTENTION_BACKWARD_INL_H_
#endif

#include <hwy/highway.h>

#include "kernels/simd/exp-inl.h"
#include "kernels/window_attention/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {

// weights: logits -> p = exp(logit - lse);  dlogits: dout . v -> ds = p (dout . v - delta).
inline void BackwardWeights(const wa::BackwardScratch& s, wa::LaneRange lanes, int64_t count) {
  const TileTag d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t lane = lanes.begin; lane < lanes.end; lane += step) {
    const auto lse = hn::LoadU(d, s.lse + lane);
    const auto delta = hn::LoadU(d, s.delta + lane);
    for (int64_t row = 0; row < count; ++row) {
      float* HWY_RESTRICT weight = s.weights + row * wa::kLanes + lane;
      float* HWY_RESTRICT dlogit = s.dlogits + row * wa::kLanes + lane;
      const auto p = ExpNonPositive(d, hn::Sub(hn::LoadU(d, weight), lse));
      hn::StoreU(p, d, weight);
      hn::StoreU(hn::Mul(p, hn::Sub(hn::LoadU(d, dlogit), delta)), d, dlogit);
    }
  }
}

// `dk`, `dv`: accumulators of the tile's keys, (count, padded width); null: not wanted.
inline void BackwardTile(const wa::QueryTile& tile, const KeyTile& keys, const WindowAttentionShape& shape,
                         const wa::BackwardScratch& s, float* dk, float* dv) {
  const wa::KeyRun& run = keys.keys;
  const int64_t first = keys.lanes.begin, lanes = keys.lanes.end - first;
  Logits(tile, keys, shape.D, s.q_t, s.weights);
  // dlogits (count, lanes) = V dout_t
  TileGemm({run.count, lanes, shape.Dv}, {run.v, run.v_row, 1}, {s.dout_t + first, wa::kLanes},
           {s.dlogits + first, wa::kLanes});
  BackwardWeights(s, keys.lanes, run.count);
  // dq_t (D, lanes) += K^T ds
  TileGemm({shape.D, lanes, run.count}, {run.k, 1, run.k_row}, {s.dlogits + first, wa::kLanes},
           {s.dq_t + first, wa::kLanes}, {.store = TileStore::kAdd});
  // dv (count, Dv) += p dout, dk (count, D) += ds q
  if (dv != nullptr) {
    TileGemm({run.count, s.Dv_padded, lanes}, {s.weights + first, wa::kLanes, 1},
             {s.dout + first * s.Dv_padded, s.Dv_padded}, {dv, s.Dv_padded}, {.store = TileStore::kAdd});
  }
  if (dk != nullptr) {
    TileGemm({run.count, s.D_padded, lanes}, {s.dlogits + first, wa::kLanes, 1}, {s.q + first * s.D_padded, s.D_padded},
             {dk, s.D_padded}, {.store = TileStore::kAdd});
  }
}

// One item (b, g): its inputs, outputs and how far the gradients of its keys are written.
class BackwardItem {
 public:
  BackwardItem(const WindowAttentionArgs<float>& args, const WindowAttentionGrads<float>& grads,
               const wa::BackwardScratch& scratch, int64_t item)
      : args_(args),
        grads_(grads),
        s_(scratch),
        b_(item / args.shape.G),
        g_(item % args.shape.G),
        first_head_(g_ * (args.shape.H / args.shape.G)),
        scale_(static_cast<float>(wa::ScaleOf(args.scale, args.shape.D))) {}

  void Run() {
    const WindowAttentionShape& shape = args_.shape;
    const int64_t queries = shape.T * (shape.H / shape.G);
    std::fill(s_.dk, s_.dk + s_.ring_rows * s_.D_padded, 0.0f);
    std::fill(s_.dv, s_.dv + s_.ring_rows * s_.Dv_padded, 0.0f);
    std::fill(s_.dsink_k, s_.dsink_k + shape.S * s_.D_padded, 0.0f);
    std::fill(s_.dsink_v, s_.dsink_v + shape.S * s_.Dv_padded, 0.0f);
    for (int64_t u = 0; u < queries; u += wa::kLanes) {
      const wa::QueryTile tile(shape, u);
      FlushKeysBefore(tile.first_key());
      LoadTile(tile);
      Sinks(tile);
      Window(tile);
    }
    FlushKeysBefore(shape.P + shape.T);
    FlushSinks();
  }

 private:
  void LoadTile(const wa::QueryTile& tile) {
    const int64_t Dv = args_.shape.Dv;
    LoadQueryRows(tile, grads_.dout, b_, first_head_, Dv, 1.0f, s_.dout);
    TileTranspose(s_.dout, s_.Dv_padded, tile.padded_lanes(), Dv, s_.dout_t, wa::kLanes);
    for (int64_t lane = 0; lane < tile.padded_lanes(); ++lane) {
      float delta = 0, lse = 0;  // a lane of padding has q = 0, so logit - lse = 0, and dout = 0
      if (lane < tile.lanes()) {
        const int64_t head = first_head_ + tile.head(lane), token = tile.token(lane);
        delta = Dot(grads_.out.At(b_, head, token), s_.dout + lane * s_.Dv_padded, Dv);
        lse = *grads_.lse.At(b_, head, token);
      }
      s_.delta[lane] = delta;
      s_.lse[lane] = lse;
    }
  }

  static float Dot(const float* x, const float* y, int64_t n) {
    const TileTag d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    auto sum = hn::Zero(d);
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) sum = hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), sum);
    float total = hn::GetLane(hn::SumOfLanes(d, sum));
    for (; i < n; ++i) total += x[i] * y[i];
    return total;
  }

  void LoadQueries(const wa::QueryTile& tile, const Rows<const float>& q) {
    LoadQueryRows(tile, q, b_, first_head_, args_.shape.D, scale_, s_.q);
    TileTranspose(s_.q, s_.D_padded, tile.padded_lanes(), args_.shape.D, s_.q_t, wa::kLanes);
  }

  void ZeroQueryGrads() { std::fill(s_.dq_t, s_.dq_t + args_.shape.D * wa::kLanes, 0.0f); }

  // Overwrites the tile's queries, which are not needed any more.
  void StoreQueryGrads(const wa::QueryTile& tile, const Rows<float>& dq) {
    float factors[wa::kLanes];
    std::fill(factors, factors + wa::kLanes, scale_);
    StoreQueryRows(tile, s_.dq_t, factors, args_.shape.D, s_.q, dq, b_, first_head_);
  }

  // Leaves the sinks' part of dq in dq_t if they are met by q itself.
  void Sinks(const wa::QueryTile& tile) {
    ZeroQueryGrads();
    const bool any = tile.end_sink() > 0;
    if (any) {
      LoadQueries(tile, args_.q_sink ? args_.q_sink : args_.q);
      ForEachSinkTile(args_, tile, b_, g_, [&](const KeyTile& keys) {
        BackwardTile(tile, keys, args_.shape, s_, grads_.dsink_k ? s_.dsink_k + keys.keys.first * s_.D_padded : nullptr,
                     grads_.dsink_v ? s_.dsink_v + keys.keys.first * s_.Dv_padded : nullptr);
      });
    }
    if (args_.q_sink) {
      if (grads_.dq_sink) StoreQueryGrads(tile, grads_.dq_sink);
      if (any) ZeroQueryGrads();
    }
    if (!any || args_.q_sink) LoadQueries(tile, args_.q);
  }

  void Window(const wa::QueryTile& tile) {
    ForEachWindowTile(args_, tile, b_, g_, [&](const KeyTile& keys) {
      const bool past = keys.keys.first < args_.shape.P;
      const int64_t row = keys.keys.first % s_.ring_rows;
      BackwardTile(tile, keys, args_.shape, s_, !past || grads_.dpast_k ? s_.dk + row * s_.D_padded : nullptr,
                   !past || grads_.dpast_v ? s_.dv + row * s_.Dv_padded : nullptr);
    });
    StoreQueryGrads(tile, grads_.dq);
  }

  // Writes the gradients of the keys that no later query sees, and clears their rows for later keys.
  void FlushKeysBefore(int64_t end) {
    const int64_t P = args_.shape.P;
    for (; flushed_ < end; ++flushed_) {
      const bool past = flushed_ < P;
      const int64_t row = flushed_ % s_.ring_rows, token = past ? flushed_ : flushed_ - P;
      FlushRow(s_.dk + row * s_.D_padded, args_.shape.D, s_.D_padded, past ? grads_.dpast_k : grads_.dk, token);
      FlushRow(s_.dv + row * s_.Dv_padded, args_.shape.Dv, s_.Dv_padded, past ? grads_.dpast_v : grads_.dv, token);
    }
  }

  void FlushSinks() {
    for (int64_t sink = 0; sink < args_.shape.S; ++sink) {
      FlushRow(s_.dsink_k + sink * s_.D_padded, args_.shape.D, s_.D_padded, grads_.dsink_k, sink);
      FlushRow(s_.dsink_v + sink * s_.Dv_padded, args_.shape.Dv, s_.Dv_padded, grads_.dsink_v, sink);
    }
  }

  void FlushRow(float* row, int64_t width, int64_t padded, const Rows<float>& to, int64_t token) {
    if (to) std::copy(row, row + width, to.At(b_, g_, token));
    std::fill(row, row + padded, 0.0f);
  }

  const WindowAttentionArgs<float>& args_;
  const WindowAttentionGrads<float>& grads_;
  const wa::BackwardScratch& s_;
  int64_t b_, g_, first_head_;
  float scale_;
  int64_t flushed_ = 0;  // keys whose gradients are written
};

inline void BackwardItems(const WindowAttentionArgs<float>& args, const WindowAttentionGrads<float>& grads,
                          int64_t begin_item, int64_t end_item, float* scratch) {
  ScratchCarver carve(scratch);
  const wa::BackwardScratch s(args.shape, carve);
  for (int64_t item = begin_item; item < end_item; ++item) BackwardItem(args, grads, s, item).Run();
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#endif  // include guard
