#include "tensorcache/kernels/memory_scan.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/memory_scan/memory_scan_plan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/memory_scan/memory_scan.cc"
#include <hwy/foreach_target.h>

#include "kernels/memory_scan/memory_scan_chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {
namespace {

// reads = exp(P_p) q A + sum_s (mask * (q key_s^T)) val_s for the queries of one head and chunk, into t.reads.
void ReadChunk(const MemoryScanShape& s, const float* q, int64_t q_row, const ScanChunk& chunk, const ScanTiles& t) {
  const bool intra = t.intra && chunk.rows > 0;
  TileGemm({chunk.queries, t.VP, s.Dk}, {q, q_row, 1}, {t.state, t.VP}, {t.reads, t.VP},
           {.row_scale = intra ? t.decay : nullptr});
  if (!intra) return;
  for (int64_t i = 0; i < t.streams; ++i) {
    const ScanStream& stream = t.stream[i];
    TileGemm<TileShape::kLowerResult>({chunk.rows, t.CP, s.Dk}, {q, q_row, 1}, {stream.key_t, t.CP}, {t.scores, t.CP});
    MaskScores(t.scores, chunk.rows, ReadMask(), t);
    TileGemm<TileShape::kLowerA>({chunk.rows, t.VP, chunk.rows}, {t.scores, t.CP, 1}, {stream.val, t.VP},
                                 {t.reads, t.VP}, {.store = TileStore::kAdd});
  }
}

// Returns whether the state stayed finite.
bool ForwardItem(const MemoryScanForwardArgs<float>& args, int64_t b, int64_t g, float* scratch) {
  const MemoryScanShape& s = args.shape;
  ScanTiles t;
  CarveScanTiles(s, ScanPass::kForward, scratch, &t);
  const TokenSource source{s, args.writes, args.past, b, g};
  const int64_t R = s.H / s.G;
  const int64_t chunks = ScanChunkCount(s);
  const int64_t state_floats = s.Dk * t.VP;
  float* saved = args.saved == nullptr ? nullptr : args.saved + (b * s.G + g) * (chunks + 1) * state_floats;

  std::fill_n(t.state, state_floats, 0.0f);
  for (int64_t i = 0; args.initial && i < s.Dk; ++i) CopyRow(args.initial.At(b, g, i), s.Dv, t.state + i * t.VP);
  int64_t constant_rows = 0;
  for (int64_t c = 0; c < chunks; ++c) {
    const ScanChunk chunk = ScanChunkAt(s, c);
    if (saved != nullptr) CopyRow(t.state, state_floats, saved + c * state_floats);
    LoadWrites(source, chunk, t, &constant_rows);
    for (int64_t h = g * R; h < (g + 1) * R; ++h) {
      ReadChunk(s, args.q.At(b, h, chunk.query), args.q.token, chunk, t);
      for (int64_t p = 0; p < chunk.queries; ++p) {
        CopyRow(t.reads + p * t.VP, s.Dv, args.reads.At(b, h, chunk.query + p));
      }
    }
    if (chunk.rows > 0) AdvanceState(s, chunk.rows, t);
  }
  if (saved != nullptr) CopyRow(t.state, state_floats, saved + chunks * state_floats);
  for (int64_t i = 0; args.final_state && i < s.Dk; ++i) {
    CopyRow(t.state + i * t.VP, s.Dv, args.final_state.At(b, g, i));
  }
  return AllFinite(t.state, s.Dk, s.Dv, t.VP);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorcache {

HWY_EXPORT(ForwardItem);

Status MemoryScanForward(const MemoryScanForwardArgs<float>& args, int64_t begin, int64_t end, float* scratch) {
  const MemoryScanShape& s = args.shape;
  TC_CHECK(ValidateMemoryScan(s).ok());
  TC_CHECK(0 <= begin && end <= s.B * s.G);
  Status status;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t b = item / s.G, g = item % s.G;
    if (HWY_DYNAMIC_DISPATCH(ForwardItem)(args, b, g, scratch) || !status.ok()) continue;
    status = StateDiverged(s.rule, b, g);
  }
  return status;
}

}  // namespace tensorcache
#endif  // HWY_ONCE
