// The backward pass of memory_scan, chunk by chunk from the last. README.md derives each product.

#include <algorithm>
#include <string>

#include "core/check.h"
#include "kernels/memory_scan/memory_scan_plan.h"
#include "tensorcache/kernels/memory_scan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/memory_scan/memory_scan_backward.cc"
#include <hwy/foreach_target.h>

#include "kernels/memory_scan/memory_scan_chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {
namespace {

double DotRow(const float* x, const float* y, int64_t n) {
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) sum = hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), sum);
  double total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) total += static_cast<double>(x[i]) * y[i];
  return total;
}

// Layouts that only the backward pass needs: keys by row, values and states transposed.
void TransposeTiles(const MemoryScanShape& s, int64_t n, const ScanTiles& t) {
  TileTranspose(t.state, t.VP, s.Dk, s.Dv, t.state_t, t.KP);
  for (int64_t i = 0; i < t.streams; ++i) {
    TileTranspose(t.stream[i].key_t, t.CP, s.Dk, n, t.stream[i].key, t.KP);
    TileTranspose(t.stream[i].val, t.VP, n, s.Dv, t.stream[i].val_t, t.CP);
  }
}

// Through state' = exp(P_{n-1}) state + sum_j exp(P_{n-1} - P_j) key_j^T val_j. Starts the streams' gradients; leaves the
// gradient of `state` itself in d_state.
void StateBackward(const MemoryScanShape& s, int64_t n, const float* end_state, const ScanTiles& t) {
  const bool wedge = s.rule == WriteRule::kWedge;
  for (int64_t i = 0; i < s.Dk; ++i) {
    t.d_prefix[n - 1] += DotRow(end_state + i * t.VP, t.d_state + i * t.VP, s.Dv);
  }
  const float* d_sum = t.d_state;
  if (wedge) {
    SubtractTranspose(t.d_state, s.Dk, t, t.work_state_t, t.work_state);
    d_sum = t.work_state;
  }
  TileTranspose(d_sum, t.VP, s.Dk, s.Dv, t.work_state_t, t.KP);
  const ScanStream& first = t.stream[0];
  TileGemm({n, t.VP, s.Dk}, {first.key_t, 1, t.CP}, {d_sum, t.VP}, {first.d_val, t.VP}, {.row_scale = t.decay_end});
  TileGemm({n, t.KP, s.Dv}, {first.val, t.VP, 1}, {t.work_state_t, t.KP}, {first.d_key, t.KP},
           {.row_scale = t.decay_end});
  if (wedge) {
    std::fill_n(t.stream[1].d_key, n * t.KP, 0.0f);
    std::fill_n(t.stream[1].d_val, n * t.VP, 0.0f);
  }
  const float decay = ChunkDecay(n, t);
  for (int64_t i = 0; i < s.Dk; ++i) ScaleRow(decay, t.d_state + i * t.VP, t.VP, t.d_state + i * t.VP);
}

// Through the reads of one head: fills t.d_q, adds to d_state, to the streams' gradients and to d_prefix.
void ReadsBackward(const MemoryScanShape& s, const ScanChunk& chunk, const ScanTiles& t) {
  const bool intra = t.intra && chunk.rows > 0;
  const float* d_scaled = t.d_reads;
  if (intra) {
    for (int64_t p = 0; p < chunk.rows; ++p) {
      ScaleRow(t.decay[p], t.d_reads + p * t.VP, t.VP, t.weighted + p * t.VP);
    }
    d_scaled = t.weighted;
  }
  TileGemm({chunk.queries, t.KP, s.Dv}, {d_scaled, t.VP, 1}, {t.state_t, t.KP}, {t.d_q, t.KP});
  TileGemm({s.Dk, t.VP, chunk.queries}, {t.q, 1, t.KP}, {d_scaled, t.VP}, {t.d_state, t.VP},
           {.store = TileStore::kAdd});
  if (!intra) return;
  const int64_t n = chunk.rows;
  for (int64_t i = 0; i < t.streams; ++i) {
    const ScanStream& stream = t.stream[i];
    TileGemm<TileShape::kLowerResult>({n, t.CP, s.Dk}, {t.q, t.KP, 1}, {stream.key_t, t.CP}, {t.scores, t.CP});
    MaskScores(t.scores, n, ReadMask(), t);
    TileGemm<TileShape::kLowerResult>({n, t.CP, s.Dv}, {t.d_reads, t.VP, 1}, {stream.val_t, t.CP}, {t.d_scores, t.CP});
    MaskScores(t.d_scores, n, ReadMask(), t);
    TileGemm<TileShape::kLowerA>({n, t.KP, n}, {t.d_scores, t.CP, 1}, {stream.key, t.KP}, {t.d_q, t.KP},
                                 {.store = TileStore::kAdd});
    TileGemm<TileShape::kUpperA>({n, t.KP, n}, {t.d_scores, 1, t.CP}, {t.q, t.KP}, {stream.d_key, t.KP},
                                 {.store = TileStore::kAdd});
    TileGemm<TileShape::kUpperA>({n, t.VP, n}, {t.scores, 1, t.CP}, {t.d_reads, t.VP}, {stream.d_val, t.VP},
                                 {.store = TileStore::kAdd});
  }
  // A read scales with its query as with exp(P_p): both derivatives are q . dq.
  for (int64_t p = 0; p < n; ++p) t.d_prefix[p] += DotRow(t.q + p * t.KP, t.d_q + p * t.KP, s.Dk);
}

// Through the solve: d_val of all later rows flows back into d_val; d_x = b d_val. It is the transposed system, from
// the last row.
void SolveBackward(int64_t n, const ScanTiles& t) {
  const int64_t last = n - 1;
  Solve({.n = n,
         .width = t.VP,
         .lower = {t.lower + last * (t.CP + 1), -1, -t.CP},
         .strength = t.strength + last,
         .strength_step = -1,
         .y = t.stream[0].d_val + last * t.VP,
         .z = t.d_x + last * t.VP,
         .row = -t.VP});
}

// Through x = v - decay_prediction k A and (I + L b) u = x. `v_of(p)` gives the value that was written.
template <class ValueOf>
void DeltaBackward(const MemoryScanShape& s, int64_t n, const ScanTiles& t, const ValueOf& v_of) {
  const ScanStream& first = t.stream[0];
  if (t.intra) {
    SolveBackward(n, t);
    // All of u_p that is not v_p scales with decay_prediction.
    for (int64_t p = t.prediction_shift; p < n; ++p) {
      const float* d_x = t.d_x + p * t.VP;
      t.d_prefix[p - t.prediction_shift] += DotRow(d_x, t.u + p * t.VP, s.Dv) - DotRow(d_x, v_of(p), s.Dv);
    }
    TileGemm<TileShape::kLowerResult>({n, t.CP, s.Dv}, {t.d_x, t.VP, 1}, {first.val_t, t.CP}, {t.d_scores, t.CP});
    MaskScores(t.d_scores, n, PredictionMask(t), t);
    TileGemm<TileShape::kLowerA>({n, t.KP, n}, {t.d_scores, t.CP, 1}, {first.key, t.KP}, {first.d_key, t.KP},
                                 {.store = TileStore::kSubtract});
    TileGemm<TileShape::kUpperA>({n, t.KP, n}, {t.d_scores, 1, t.CP}, {first.key, t.KP}, {first.d_key, t.KP},
                                 {.store = TileStore::kSubtract});
  } else {
    for (int64_t p = 0; p < n; ++p) ScaleRow(t.strength[p], first.d_val + p * t.VP, t.VP, t.d_x + p * t.VP);
  }
  for (int64_t p = 0; p < n; ++p) ScaleRow(t.decay_prediction[p], t.d_x + p * t.VP, t.VP, t.weighted + p * t.VP);
  TileGemm({n, t.KP, s.Dv}, {t.weighted, t.VP, 1}, {t.state_t, t.KP}, {first.d_key, t.KP},
           {.store = TileStore::kSubtract});
  TileGemm({s.Dk, t.VP, n}, {first.key_t, t.CP, 1}, {t.weighted, t.VP}, {t.d_state, t.VP},
           {.store = TileStore::kSubtract});
}

// From the streams' gradients to those of k (left in stream[0].d_key), v (left in d_x) and b.
void WritesBackward(const MemoryScanShape& s, int64_t n, const ScanTiles& t) {
  const ScanStream& first = t.stream[0];
  for (int64_t p = 0; p < n; ++p) {
    t.d_strength[p] = DotRow(t.u + p * t.VP, first.d_val + p * t.VP, s.Dv);
    if (IsDelta(s.rule)) continue;  // d_x is already the gradient of v
    ScaleRow(t.strength[p], first.d_val + p * t.VP, t.VP, t.d_x + p * t.VP);
    if (s.rule == WriteRule::kWedge) {
      const ScanStream& second = t.stream[1];
      t.d_strength[p] -= DotRow(first.key + p * t.KP, second.d_val + p * t.VP, s.Dv);
      AddScaledRow(1.0f, second.d_key + p * t.KP, t.KP, t.d_x + p * t.VP);
      AddScaledRow(-t.strength[p], second.d_val + p * t.VP, t.VP, first.d_key + p * t.KP);
    }
  }
  // Every use of write p has the factor exp(-P_p) b_p.
  for (int64_t p = 0; p < n; ++p) t.d_prefix[p] -= t.strength[p] * t.d_strength[p];
}

// Where the gradients of tokens go: the ring's or the block's arrays.
struct TokenGradients {
  const MemoryScanBackwardArgs<float>& args;
  int64_t b, g;

  struct Place {
    const MemoryWrites<float>& writes;
    int64_t row;
  };
  Place PlaceOf(int64_t token) const {
    const int64_t past = args.shape.past;
    return token < past ? Place{args.d_past, token} : Place{args.d_writes, token - past};
  }

  // Row p of the tiles, times `share`, to `token`.
  void Store(int64_t token, int64_t p, float share, double d_log_decay, const ScanTiles& t) const {
    const auto& [to, row] = PlaceOf(token);
    const auto store = [&](const Rows<float>& rows, const float* from, int64_t n, int64_t at) {
      if (!rows) return;
      float* out = rows.At(b, g, at);
      for (int64_t i = 0; i < n; ++i) out[i] = share * from[i];
    };
    store(to.k, t.stream[0].d_key + p * t.KP, args.shape.Dk, row);
    store(to.v, t.d_x + p * t.VP, args.shape.Dv, row);
    if (to.log_decay) *to.log_decay.At(b, g, row) = static_cast<float>(share * d_log_decay);
    if (to.write_strength) *to.write_strength.At(b, g, row) = static_cast<float>(share * t.d_strength[p]);
  }

  void StoreZero(int64_t token) const {
    const auto& [to, row] = PlaceOf(token);
    if (to.k) std::fill_n(to.k.At(b, g, row), args.shape.Dk, 0.0f);
    if (to.v) std::fill_n(to.v.At(b, g, row), args.shape.Dv, 0.0f);
    if (to.log_decay) *to.log_decay.At(b, g, row) = 0;
    if (to.write_strength) *to.write_strength.At(b, g, row) = 0;
  }

  void StoreChunk(const ScanChunk& chunk, const ScanTiles& t) const {
    double d_log_decay = 0;  // g_p is in every prefix sum from p on
    if (chunk.rows < chunk.tokens) {
      for (int64_t i = 0; i < chunk.tokens; ++i) {
        Store(chunk.token + i, 0, 1.0f / static_cast<float>(chunk.tokens), t.d_prefix[0], t);
      }
      return;
    }
    for (int64_t p = chunk.rows - 1; p >= 0; --p) {
      d_log_decay += t.d_prefix[p];
      Store(chunk.token + p, p, 1.0f, d_log_decay, t);
    }
  }
};

bool BackwardItem(const MemoryScanBackwardArgs<float>& args, int64_t b, int64_t g, float* scratch) {
  const MemoryScanShape& s = args.shape;
  ScanTiles t;
  CarveScanTiles(s, ScanPass::kBackward, scratch, &t);
  const TokenSource source{s, args.writes, args.past, b, g};
  const TokenGradients gradients{args, b, g};
  const int64_t R = s.H / s.G;
  const int64_t chunks = ScanChunkCount(s);
  const int64_t state_floats = s.Dk * t.VP;
  const float* saved = args.saved + (b * s.G + g) * (chunks + 1) * state_floats;

  for (int64_t token = ScanWrittenTokens(s); token < s.past + s.T; ++token) gradients.StoreZero(token);
  std::fill_n(t.d_state, state_floats, 0.0f);
  for (int64_t i = 0; args.d_final && i < s.Dk; ++i) CopyRow(args.d_final.At(b, g, i), s.Dv, t.d_state + i * t.VP);
  int64_t constant_rows = 0;
  for (int64_t c = chunks - 1; c >= 0; --c) {
    const ScanChunk chunk = ScanChunkAt(s, c);
    const int64_t n = chunk.rows;
    CopyRow(saved + c * state_floats, state_floats, t.state);
    LoadWrites(source, chunk, t, &constant_rows);
    TransposeTiles(s, n, t);
    std::fill_n(t.d_prefix, n, 0.0);
    if (n > 0) StateBackward(s, n, saved + (c + 1) * state_floats, t);
    for (int64_t h = g * R; h < (g + 1) * R; ++h) {
      for (int64_t p = 0; p < chunk.queries; ++p) {
        CopyRow(args.q.At(b, h, chunk.query + p), s.Dk, t.q + p * t.KP);
        CopyRow(args.d_reads.At(b, h, chunk.query + p), s.Dv, t.d_reads + p * t.VP);
      }
      ReadsBackward(s, chunk, t);
      for (int64_t p = 0; args.d_q && p < chunk.queries; ++p) {
        CopyRow(t.d_q + p * t.KP, s.Dk, args.d_q.At(b, h, chunk.query + p));
      }
    }
    if (n == 0) continue;
    if (IsDelta(s.rule)) {
      DeltaBackward(s, n, t, [&](int64_t p) {
        const float* v = nullptr;
        source.ForEachRun(chunk.token + p, 1,
                          [&](const auto& from, int64_t row, int64_t, int64_t) { v = from.v.At(b, g, row); });
        return v;
      });
    }
    WritesBackward(s, n, t);
    gradients.StoreChunk(chunk, t);
  }
  for (int64_t i = 0; args.d_initial && i < s.Dk; ++i) {
    CopyRow(t.d_state + i * t.VP, s.Dv, args.d_initial.At(b, g, i));
  }
  return AllFinite(t.d_state, s.Dk, s.Dv, t.VP);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorcache {

HWY_EXPORT(BackwardItem);

Status MemoryScanBackward(const MemoryScanBackwardArgs<float>& args, int64_t begin, int64_t end, float* scratch) {
  const MemoryScanShape& s = args.shape;
  TC_CHECK(ValidateMemoryScan(s).ok());
  TC_CHECK(0 <= begin && end <= s.B * s.G);
  TC_CHECK(args.saved != nullptr);
  Status status;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t b = item / s.G, g = item % s.G;
    if (HWY_DYNAMIC_DISPATCH(BackwardItem)(args, b, g, scratch) || !status.ok()) continue;
    status = Diverged("memory_scan: the gradient of the state of batch row " + std::to_string(b) + ", head " +
                      std::to_string(g) +
                      " left the finite numbers; check the incoming gradients for infinities, or "
                      "normalise the keys (delta rules)");
  }
  return status;
}

}  // namespace tensorcache
#endif  // HWY_ONCE
