#include "kernels/memory_scan/memory_scan_plan.h"

#include <algorithm>
#include <string>

#include "kernels/simd/scratch_carver.h"
#include "kernels/simd/tile.h"

namespace tensorcache {
namespace {

// Exact mode may choose its chunk. Inside a chunk the cost per token grows with C, between chunks A is loaded and stored
// once; these are the measured optima (memory_scan_bench.cc).
int64_t ChunkLength(const MemoryScanShape& s) {
  if (s.mode != ScanMode::kExact) return s.chunk;
  return std::min(s.Dk, s.Dv) >= 48 ? 64 : 32;
}

// Queries that come before the first write of the block: the ring is still filling.
int64_t LeadingQueries(const MemoryScanShape& s) {
  return s.mode == ScanMode::kExact ? std::min(s.T, s.lag - s.past) : 0;
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Status ValidateMemoryScan(const MemoryScanShape& s) {
  const auto fail = [](const std::string& what) { return InvalidArgument("memory_scan: " + what); };
  if (s.B < 0 || s.T < 0) return fail("batch and length must not be negative");
  if (s.Dk < 1 || s.Dv < 1) return fail("head widths Dk and Dv must be at least 1");
  if (s.G < 1 || s.H < 1 || s.H % s.G != 0) return fail("query heads must be a multiple of key/value heads");
  if (s.lag < 0) return fail("lag must not be negative");
  if (s.past < 0 || s.past > s.lag) return fail("the ring holds between 0 and lag tokens");
  if (s.rule == WriteRule::kWedge && s.Dk != s.Dv) {
    return fail("rule wedge needs keys and values of the same width (read normalisation adds a column: use outer)");
  }
  if (s.mode != ScanMode::kExact) {
    if (s.chunk < 1) return fail("chunk modes need a chunk of at least 1 token");
    if (s.lag != 0) return fail("chunk modes write every token: lag must be 0");
    if (s.rule == WriteRule::kGatedDelta) {
      return fail("rule gated_delta has no chunk modes: use the exact mode, or rule delta");
    }
  }
  return OkStatus();
}

Status ValidateMemoryStep(const MemoryStepArgs& args) {
  return ValidateMemoryScan(
      {.B = args.B, .H = args.H, .G = args.G, .T = 1, .Dk = args.Dk, .Dv = args.Dv, .rule = args.rule});
}

Status StateDiverged(WriteRule rule, int64_t b, int64_t g) {
  std::string advice = "check the keys and values for infinities, or lower the decay or the write rate";
  if (IsDelta(rule)) {
    const bool gated = rule == WriteRule::kGatedDelta;
    advice = std::string("the ") + (gated ? "gated_delta" : "delta") + " rule needs write strength * |k|^2 < 1 + " +
             (gated ? "1 / decay" : "decay") + ": normalise the keys or lower the write rate";
  }
  return Diverged("memory_scan: the state of batch row " + std::to_string(b) + ", head " + std::to_string(g) +
                  " left the finite numbers; " + advice);
}

int64_t ScanWrittenTokens(const MemoryScanShape& s) { return s.T - LeadingQueries(s); }

int64_t ScanChunkCount(const MemoryScanShape& s) {
  const int64_t C = ChunkLength(s);
  return CeilDiv(LeadingQueries(s), C) + CeilDiv(ScanWrittenTokens(s), C);
}

ScanChunk ScanChunkAt(const MemoryScanShape& s, int64_t index) {
  const int64_t C = ChunkLength(s);
  const int64_t leading = LeadingQueries(s);
  const int64_t leading_chunks = CeilDiv(leading, C);
  ScanChunk chunk;
  if (index < leading_chunks) {
    chunk.query = index * C;
    chunk.queries = std::min(C, leading - chunk.query);
    return chunk;
  }
  chunk.token = (index - leading_chunks) * C;
  chunk.tokens = std::min(C, ScanWrittenTokens(s) - chunk.token);
  chunk.query = leading + chunk.token;
  chunk.queries = chunk.tokens;
  chunk.rows = s.mode == ScanMode::kChunkMean ? 1 : chunk.tokens;
  return chunk;
}

int64_t CarveScanTiles(const MemoryScanShape& s, ScanPass pass, float* base, ScanTiles* t) {
  t->CQ = std::min(ChunkLength(s), std::max<int64_t>(s.T, 1));
  t->C = s.mode == ScanMode::kChunkMean ? 1 : t->CQ;
  t->KP = TilePadded(s.Dk);
  t->VP = TilePadded(s.Dv);
  t->CP = TilePadded(t->C);
  t->intra = s.mode == ScanMode::kExact;
  t->streams = s.rule == WriteRule::kWedge ? 2 : 1;
  t->prediction_shift = s.rule == WriteRule::kDelta ? 1 : 0;
  const bool backward = pass == ScanPass::kBackward;

  ScratchCarver carve(base);
  t->state = carve.Take(s.Dk * t->VP);
  for (int64_t i = 0; i < t->streams; ++i) {
    ScanStream& stream = t->stream[i];
    stream.key_t = carve.Take(s.Dk * t->CP);
    stream.val = carve.Take(t->C * t->VP);
    if (!backward) continue;
    stream.key = carve.Take(t->C * t->KP);
    stream.val_t = carve.Take(s.Dv * t->CP);
    stream.d_key = carve.Take(t->C * t->KP);
    stream.d_val = carve.Take(t->C * t->VP);
  }
  if (backward || s.rule == WriteRule::kWedge) {
    t->work_state = carve.Take(s.Dk * t->VP);
    t->work_state_t = carve.Take(s.Dv * t->KP);
  }
  t->u = carve.Take(t->C * t->VP);
  t->weighted = carve.Take(std::max(t->C, t->CQ) * t->VP);
  t->reads = carve.Take(t->CQ * t->VP);
  if (t->intra) {
    t->scores = carve.Take(t->C * t->CP);
    t->mask = carve.Take(t->C * t->CP);
    if (IsDelta(s.rule)) t->lower = carve.Take(t->C * t->CP);
  }
  for (float** scalars :
       {&t->log_decay, &t->strength, &t->prefix_hi, &t->prefix_lo, &t->decay, &t->decay_prediction, &t->decay_end}) {
    *scalars = carve.Take(t->CP);
  }
  if (backward) {
    t->d_state = carve.Take(s.Dk * t->VP);
    t->state_t = carve.Take(s.Dv * t->KP);
    t->q = carve.Take(t->CQ * t->KP);
    t->d_q = carve.Take(t->CQ * t->KP);
    t->d_reads = carve.Take(t->CQ * t->VP);
    if (t->intra) t->d_scores = carve.Take(t->C * t->CP);
    t->d_x = carve.Take(t->C * t->VP);
    t->d_prefix = carve.TakeDoubles(t->CP);
    t->d_strength = carve.TakeDoubles(t->CP);
  }
  return carve.floats();
}

int64_t MemoryScanScratchFloats(const MemoryScanShape& shape) {
  ScanTiles tiles;
  return CarveScanTiles(shape, ScanPass::kForward, nullptr, &tiles);
}

int64_t MemoryScanBackwardScratchFloats(const MemoryScanShape& shape) {
  ScanTiles tiles;
  return CarveScanTiles(shape, ScanPass::kBackward, nullptr, &tiles);
}

int64_t MemoryScanSavedFloats(const MemoryScanShape& s) {
  return s.B * s.G * (ScanChunkCount(s) + 1) * s.Dk * TilePadded(s.Dv);
}

}  // namespace tensorcache
