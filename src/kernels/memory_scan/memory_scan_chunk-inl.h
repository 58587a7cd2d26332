// One chunk's writes, shared by the forward and the backward pass: loading tokens into tiles, decay factors, the delta
// solve, and the step of the state over a chunk. Include inside a Highway foreach_target translation unit only.

#if defined(TENSORCACHE_MEMORY_SCAN_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORCACHE_MEMORY_SCAN_CHUNK_INL_H_
#undef TENSORCACHE_MEMORY_SCAN_CHUNK_INL_H_
#else
#define TENSORCACHE_MEMORY_SCAN_CHUNK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "kernels/memory_scan/memory_scan_plan.h"
#include "kernels/memory_scan/memory_scan_solve-inl.h"
#include "kernels/simd/exp-inl.h"
#include "kernels/simd/row-inl.h"
#include "kernels/simd/tile_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {

// The tokens of ring and block under one numbering, for one (batch, head).
struct TokenSource {
  const MemoryScanShape& shape;
  const MemoryWrites<const float>& writes;
  const MemoryPast<const float>& past;
  int64_t b, g;

  // Calls body(writes, first row, count, offset) for the runs of rows that tokens [begin, begin + n) lie in: at most
  // three, since the ring wraps at most once.
  template <class Body>
  HWY_INLINE void ForEachRun(int64_t begin, int64_t n, const Body& body) const {
    int64_t done = 0;
    while (done < n) {
      const int64_t token = begin + done;
      if (token >= shape.past) {
        body(writes, token - shape.past, n - done, done);
        return;
      }
      const int64_t row = (past.start + token) % past.capacity;
      const int64_t count = std::min({n - done, shape.past - token, past.capacity - row});
      body(past, row, count, done);
      done += count;
    }
  }

  // One decay for all tokens, so that decay factors can be kept from chunk to chunk.
  bool ConstantDecay() const {
    if (writes.log_decay.token != 0) return false;
    if (shape.past == 0) return true;
    return past.log_decay.token == 0 && *past.log_decay.At(b, g, 0) == *writes.log_decay.At(b, g, 0);
  }
};

HWY_INLINE void CopyRow(const float* from, int64_t n, float* to) {
  std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
}

// y += scale * x over a padded row.
HWY_INLINE void AddScaledRow(float scale, const float* x, int64_t padded, float* y) {
  const TileTag d;
  const auto factor = hn::Set(d, scale);
  for (int64_t i = 0; i < padded; i += static_cast<int64_t>(hn::Lanes(d))) {
    hn::StoreU(hn::MulAdd(factor, hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, y + i);
  }
}

// Keys (transposed), values into u, log-decays and strengths of the chunk's tokens.
inline void LoadTokens(const TokenSource& source, const ScanChunk& chunk, const ScanTiles& t) {
  const MemoryScanShape& s = source.shape;
  source.ForEachRun(chunk.token, chunk.tokens, [&](const auto& from, int64_t row, int64_t count, int64_t offset) {
    TileTranspose(from.k.At(source.b, source.g, row), from.k.token, count, s.Dk, t.stream[0].key_t + offset, t.CP);
    if (s.rule == WriteRule::kWedge) {
      TileTranspose(from.v.At(source.b, source.g, row), from.v.token, count, s.Dv, t.stream[1].key_t + offset, t.CP);
    }
    for (int64_t i = 0; i < count; ++i) {
      CopyRow(from.v.At(source.b, source.g, row + i), s.Dv, t.u + (offset + i) * t.VP);
      t.log_decay[offset + i] = *from.log_decay.At(source.b, source.g, row + i);
      t.strength[offset + i] = *from.write_strength.At(source.b, source.g, row + i);
    }
  });
}

// The same for a chunk mean: one row.
inline void LoadMean(const TokenSource& source, const ScanChunk& chunk, const ScanTiles& t) {
  const MemoryScanShape& s = source.shape;
  double log_decay = 0, strength = 0;
  float* mean_k = t.stream[0].key_t;  // Dk x CP: element i at i * CP
  for (int64_t i = 0; i < s.Dk; ++i) mean_k[i * t.CP] = 0;
  std::fill_n(t.u, t.VP, 0.0f);
  source.ForEachRun(chunk.token, chunk.tokens, [&](const auto& from, int64_t row, int64_t count, int64_t) {
    for (int64_t j = row; j < row + count; ++j) {
      const float* k = from.k.At(source.b, source.g, j);
      const float* v = from.v.At(source.b, source.g, j);
      for (int64_t i = 0; i < s.Dk; ++i) mean_k[i * t.CP] += k[i];
      for (int64_t i = 0; i < s.Dv; ++i) t.u[i] += v[i];
      log_decay += *from.log_decay.At(source.b, source.g, j);
      strength += *from.write_strength.At(source.b, source.g, j);
    }
  });
  const float inverse = 1.0f / static_cast<float>(chunk.tokens);
  for (int64_t i = 0; i < s.Dk; ++i) mean_k[i * t.CP] *= inverse;
  ScaleRow(inverse, t.u, t.VP, t.u);
  if (s.rule == WriteRule::kWedge) {
    for (int64_t i = 0; i < s.Dv; ++i) t.stream[1].key_t[i * t.CP] = t.u[i];
  }
  t.log_decay[0] = static_cast<float>(log_decay / static_cast<double>(chunk.tokens));
  t.strength[0] = static_cast<float>(strength / static_cast<double>(chunk.tokens));
}

// exp((hi_a + lo_a) - (hi_p + lo_p)) for p in [0, n), masked to p < count. Never exp(P_a) / exp(P_p): that overflows.
HWY_INLINE void ExpDifferences(float hi, float lo, const ScanTiles& t, int64_t count, float* out) {
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t j = 0; j < count; j += lanes) {
    const auto keep = hn::FirstN(d, static_cast<size_t>(std::min(lanes, count - j)));
    const auto high = hn::Sub(hn::Set(d, hi), hn::LoadU(d, t.prefix_hi + j));
    const auto low = hn::Sub(hn::Set(d, lo), hn::LoadU(d, t.prefix_lo + j));
    const auto exponent = hn::IfThenElseZero(keep, hn::Add(high, low));
    hn::StoreU(hn::IfThenElseZero(keep, ExpNonPositive(d, exponent)), d, out + j);
  }
}

// All decay factors of n writes. Prefix sums are kept in two floats: differences of large sums stay accurate when one
// token forgets nearly everything and the following ones nearly nothing.
inline void DecayFactors(int64_t n, const ScanTiles& t) {
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  double prefix = 0;
  for (int64_t p = 0; p < n; ++p) {
    prefix += t.log_decay[p];
    t.prefix_hi[p] = static_cast<float>(prefix);
    t.prefix_lo[p] = static_cast<float>(prefix - t.prefix_hi[p]);
  }
  for (int64_t p = n; p < t.CP; ++p) t.prefix_hi[p] = t.prefix_lo[p] = 0;
  if (t.intra) {
    for (int64_t p = 0; p < n; ++p) ExpDifferences(t.prefix_hi[p], t.prefix_lo[p], t, p + 1, t.mask + p * t.CP);
    for (int64_t p = 0; p < n; p += lanes) {
      const auto exponent = hn::Add(hn::LoadU(d, t.prefix_hi + p), hn::LoadU(d, t.prefix_lo + p));
      hn::StoreU(ExpNonPositive(d, exponent), d, t.decay + p);
    }
    const int64_t shift = t.prediction_shift;
    for (int64_t p = 0; p < n; ++p) t.decay_prediction[p] = p < shift ? 1.0f : t.decay[p - shift];
  } else {
    std::fill_n(t.decay, n, 1.0f);
    std::fill_n(t.decay_prediction, n, 1.0f);
  }
  ExpDifferences(t.prefix_hi[n - 1], t.prefix_lo[n - 1], t, n, t.decay_end);
}

// exp(P_{n-1}): what is left of the chunk-start state at its end.
HWY_INLINE float ChunkDecay(int64_t n, const ScanTiles& t) {
  const TileTag d;
  const auto exponent = hn::Set(d, t.prefix_hi[n - 1] + t.prefix_lo[n - 1]);
  return hn::GetLane(ExpNonPositive(d, exponent));
}

// What weighs the products of n rows with the chunk's writes: reads see the write of their own token, predictions only
// those before.
struct ScoreMask {
  int64_t below;  // row p sees writes j <= p - below
  int64_t shift;  // and they have decayed by exp(P_{p - shift} - P_j)
};

HWY_INLINE ScoreMask ReadMask() { return {.below = 0, .shift = 0}; }
HWY_INLINE ScoreMask PredictionMask(const ScanTiles& t) { return {.below = 1, .shift = t.prediction_shift}; }

// scores(p, j) times its weight; zero in the rest of p's row block, which triangular products read.
inline void MaskScores(float* scores, int64_t n, ScoreMask mask, const ScanTiles& t) {
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t p = 0; p < n; ++p) {
    const int64_t count = p + 1 - mask.below;
    float* row = scores + p * t.CP;
    int64_t j = 0;
    for (; j < count; j += lanes) {
      const auto keep = hn::FirstN(d, static_cast<size_t>(std::min(lanes, count - j)));
      const auto weight = hn::LoadU(d, t.mask + (p - mask.shift) * t.CP + j);
      hn::StoreU(hn::IfThenElseZero(keep, hn::Mul(hn::LoadU(d, row + j), weight)), d, row + j);
    }
    for (; j < TilePadded(p + 1); j += lanes) hn::StoreU(hn::Zero(d), d, row + j);
  }
}

// From loaded tokens to streams: residuals for delta rules, strengths into the values.
inline void PrepareWrites(const MemoryScanShape& s, int64_t n, const ScanTiles& t) {
  const ScanStream& first = t.stream[0];
  if (IsDelta(s.rule)) {
    // x = v - decay_prediction k A
    TileGemm({n, t.VP, s.Dk}, {first.key_t, 1, t.CP}, {t.state, t.VP}, {t.u, t.VP},
             {.store = TileStore::kSubtract, .row_scale = t.decay_prediction});
    if (t.intra) {
      TileGemm<TileShape::kLowerResult>({n, t.CP, s.Dk}, {first.key_t, 1, t.CP}, {first.key_t, t.CP}, {t.lower, t.CP});
      MaskScores(t.lower, n, PredictionMask(t), t);
      Solve({.n = n,
             .width = t.VP,
             .lower = {t.lower, t.CP, 1},
             .strength = t.strength,
             .strength_step = 1,
             .y = t.u,
             .z = first.val,
             .row = t.VP});
      return;
    }
  }
  for (int64_t p = 0; p < n; ++p) ScaleRow(t.strength[p], t.u + p * t.VP, t.VP, first.val + p * t.VP);
  if (s.rule == WriteRule::kWedge) {
    float* val = t.stream[1].val;
    TileTranspose(first.key_t, t.CP, s.Dk, n, val, t.VP);
    for (int64_t p = 0; p < n; ++p) ScaleRow(-t.strength[p], val + p * t.VP, t.VP, val + p * t.VP);
  }
}

// Loads a chunk's writes. `constant_rows` carries, from chunk to chunk of one item, the number of rows for which the
// factors of a constant decay are already there (0: none).
inline void LoadWrites(const TokenSource& source, const ScanChunk& chunk, const ScanTiles& t, int64_t* constant_rows) {
  const MemoryScanShape& s = source.shape;
  if (chunk.rows == 0) return;
  if (s.mode == ScanMode::kChunkMean) {
    LoadMean(source, chunk, t);
  } else {
    LoadTokens(source, chunk, t);
  }
  if (*constant_rows != chunk.rows) {
    DecayFactors(chunk.rows, t);
    *constant_rows = source.ConstantDecay() ? chunk.rows : 0;
  }
  PrepareWrites(s, chunk.rows, t);
}

// m - m^T for a D x D tile, exactly antisymmetric: (x - y) and (y - x) round alike.
inline void SubtractTranspose(const float* m, int64_t D, const ScanTiles& t, float* transpose, float* out) {
  const TileTag d;
  TileTranspose(m, t.VP, D, D, transpose, t.KP);
  for (int64_t i = 0; i < D; ++i) {
    for (int64_t j = 0; j < t.VP; j += static_cast<int64_t>(hn::Lanes(d))) {
      const int64_t at = i * t.VP + j;
      hn::StoreU(hn::Sub(hn::LoadU(d, m + at), hn::LoadU(d, transpose + at)), d, out + at);
    }
  }
}

// state = exp(P_{n-1}) state + sum_j exp(P_{n-1} - P_j) key_j^T val_j
inline void AdvanceState(const MemoryScanShape& s, int64_t n, const ScanTiles& t) {
  const ScanStream& first = t.stream[0];
  for (int64_t p = 0; p < n; ++p) ScaleRow(t.decay_end[p], first.val + p * t.VP, t.VP, t.weighted + p * t.VP);
  const bool wedge = s.rule == WriteRule::kWedge;
  const float decay = ChunkDecay(n, t);
  TileGemm({s.Dk, t.VP, n}, {first.key_t, t.CP, 1}, {t.weighted, t.VP}, {wedge ? t.work_state : t.state, t.VP},
           {.store = wedge ? TileStore::kSet : TileStore::kAdd, .c_scale = decay});
  if (!wedge) return;
  SubtractTranspose(t.work_state, s.Dk, t, t.work_state_t, t.work_state);
  for (int64_t i = 0; i < s.Dk; ++i) {
    ScaleRow(decay, t.state + i * t.VP, t.VP, t.state + i * t.VP);
    AddScaledRow(1.0f, t.work_state + i * t.VP, t.VP, t.state + i * t.VP);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#endif  // include guard
