// Infini-attention's memory. src/train/infini_memory.cc has the formulas.
#include <cmath>

#include "kernels/memory_scan/memory_scan.h"
#include "runtime/head_memory_parts.h"
#include "runtime/rows_math.h"

namespace tensorcache::runtime {
namespace {

float Feature(float x) { return x > 0 ? x + 1 : std::exp(x); }  // elu(x) + 1

constexpr float kNoDecay = 0, kFullStrength = 1;

struct InfiniRows {
  float* q;     // (R, T, D): s(q)
  float* k;     // (T, D): s(k), by the delta rule s(k) / sqrt(c)
  float* v;     // (T, D): v, by the delta rule v sqrt(c)
  float* norm;  // (R, T): s(q_t) z_t
};

// Moves the normaliser z on.
InfiniRows MakeInfiniRows(const HeadBlock& in, const HeadRows& rows, const Sizes& n, Arena& arena) {
  const InfiniConfig& infini = in.spec.config.cache.infini;
  const Rows<const float> q =
      infini.memory_rope ? Rows<const float>{.data = rows.q, .head = n.T * n.D, .token = n.D} : rows.plain_q;
  const Rows<const float> k = infini.memory_rope ? Rows<const float>{.data = rows.k, .token = n.D} : rows.plain_k;
  float* z = in.arrays.normalizer.As<float>() + in.head * n.D;
  InfiniRows out = {.q = arena.Take(n.R * n.T * n.D),
                    .k = arena.Take(n.T * n.D),
                    .v = arena.Take(n.T * n.D),
                    .norm = arena.Take(n.R * n.T)};
  for (int64_t t = 0; t < n.T; ++t) {
    float* key = out.k + t * n.D;
    for (int64_t i = 0; i < n.D; ++i) key[i] = Feature(k.At(0, 0, t)[i]);
    const float known = infini.delta ? Dot(key, z, n.D) : 0;  // 0 only for the first token: nothing is known then
    for (int64_t i = 0; i < n.D; ++i) z[i] += key[i];
    const float root = known > 0 ? std::sqrt(known) : 1;
    for (int64_t i = 0; i < n.D; ++i) {
      key[i] /= root;
      out.v[t * n.D + i] = rows.v.At(0, 0, t)[i] * root;
    }
    for (int64_t r = 0; r < n.R; ++r) {
      float* query = out.q + (r * n.T + t) * n.D;
      for (int64_t i = 0; i < n.D; ++i) query[i] = Feature(q.At(0, r, t)[i]);
      out.norm[r * n.T + t] = Dot(query, z, n.D);
    }
  }
  return out;
}

void NormalizeReads(const Rows<float>& reads, const Sizes& n, const float* norm) {
  for (int64_t r = 0; r < n.R; ++r) {
    for (int64_t t = 0; t < n.T; ++t) {
      float* read = reads.At(0, r, t);
      for (int64_t i = 0; i < n.D; ++i) read[i] /= norm[r * n.T + t];
    }
  }
}

}  // namespace

Status AdvanceInfini(const HeadBlock& in, const HeadRows& rows, Arena& arena) {
  const Sizes n(in);
  const InfiniRows infini = MakeInfiniRows(in, rows, n, arena);
  const WriteRule rule = in.spec.config.cache.infini.delta ? WriteRule::kDelta : WriteRule::kOuter;
  const Rows<float> state = {.data = StateOf(in, n, 0), .token = n.Dv};
  const MemoryWrites<const float> writes = {.k = {.data = infini.k, .token = n.D},
                                            .v = {.data = infini.v, .token = n.D},
                                            .log_decay = {.data = &kNoDecay},
                                            .write_strength = {.data = &kFullStrength}};
  const Rows<const float> q = {.data = infini.q, .head = n.T * n.D, .token = n.D};
  const Rows<float> reads = ReadRows(in, arena);
  Status status;
  if (n.T == 1) {
    MemoryStep(
        {.H = n.R, .Dk = n.D, .Dv = n.Dv, .rule = rule, .evicted = writes, .q = q, .state = state, .reads = reads}, 0,
        1);
  } else {
    const MemoryScanShape shape = {.H = n.R, .T = n.T, .Dk = n.D, .Dv = n.Dv, .rule = rule};
    MemoryScanForwardArgs<float> args{.shape = shape, .q = q, .writes = writes};
    args.initial = {.data = state.data, .token = n.Dv};
    args.reads = reads;
    args.final_state = state;
    status = MemoryScanForward(args, 0, 1, arena.Take(MemoryScanScratchFloats(shape)));
  }
  NormalizeReads(reads, n, infini.norm);
  return status;
}

}  // namespace tensorcache::runtime
