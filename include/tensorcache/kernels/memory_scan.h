// memory_scan: the second-level cache (L2). Writes key/value pairs into a matrix A per head and reads it with queries.
//
// For each (batch, key/value head), with A of size Dk x Dv and row vectors q, k (Dk), v (Dv):
//
//   write of token i:  A_i = exp(g_i) A_{i-1} + b_i k_i^T u_i
//       outer        u_i = v_i
//       delta        u_i = v_i - k_i A_{i-1}
//       gated_delta  u_i = v_i - exp(g_i) k_i A_{i-1}
//       wedge        A_i = exp(g_i) A_{i-1} + b_i (k_i^T v_i - v_i^T k_i)    (Dk = Dv; A stays exactly antisymmetric)
//   read of query t:   r_t = q_t A,  after the write of token t - lag
//
// g <= 0 is the log-decay and b >= 0 the write strength. `lag` is the window W of the first-level cache: a token is
// written when the window evicts it. lag = 0 writes every token on arrival.
//
// A block of T tokens starts from a state: A, and the ring of the `past` most recent tokens (at most `lag` of them), which
// are not yet written. Numbering the ring's tokens and then the block's 0, 1, .., past + T - 1, query t (of the block)
// reads after the writes of tokens 0 .. past + t - lag. The last min(lag, past + T) tokens are the caller's next ring.
// Any split of a sequence into blocks and single steps gives the same reads and the same state, up to rounding.
//
// README.md in this folder derives the chunked forms. Nothing here allocates, starts a thread or keeps state: the
// caller hands out ranges of the B * G work items (item = b * G + g) and one scratch buffer per thread.
#pragma once

#include <cstdint>

#include "tensorcache/choices.h"
#include "tensorcache/kernels/rows.h"
#include "tensorcache/status.h"

namespace tensorcache {

enum class ScanMode {
  kExact,       // the recurrence above; the only mode of gated_delta
  kChunkStart,  // the paper's training mode: lag 0; all queries of a chunk read, and all delta residuals use, the A the
                // chunk started with
  kChunkMean,   // the paper's shortcut, for its ablation: one write per chunk, of mean(k) and mean(v), with the means
                // of g and b; reads as in kChunkStart
};

struct MemoryScanShape {
  int64_t B = 1;     // batch
  int64_t H = 1;     // query heads
  int64_t G = 1;     // key/value heads, H = R * G; query head h reads the A of head h / R
  int64_t T = 0;     // tokens in the block
  int64_t Dk = 0;    // width of q and k
  int64_t Dv = 0;    // width of v and of the reads; Dk + 1 carries a normaliser
  int64_t lag = 0;   // W
  int64_t past = 0;  // tokens in the ring, 0 .. lag
  WriteRule rule = WriteRule::kOuter;
  ScanMode mode = ScanMode::kExact;
  int64_t chunk = 0;  // chunk modes only. Blocks other than the last must be a multiple of it long.
};

// What is written, for the tokens of the block or of the ring. Scalars per token are rows of width 1; a constant per head
// has token stride 0.
template <class Real>
struct MemoryWrites {
  Rows<Real> k;               // (B, G, tokens, Dk)
  Rows<Real> v;               // (B, G, tokens, Dv)
  Rows<Real> log_decay;       // (B, G, tokens)
  Rows<Real> write_strength;  // (B, G, tokens)
};

// The ring: its token i (oldest first) is in row (start + i) % capacity.
template <class Real>
struct MemoryPast : MemoryWrites<Real> {
  int64_t capacity = 0;
  int64_t start = 0;
};

template <class Real>
struct MemoryScanForwardArgs {
  MemoryScanShape shape;
  Rows<const Real> q;               // (B, H, T, Dk)
  MemoryWrites<const Real> writes;  // the block's tokens
  MemoryPast<const Real> past;      // ignored if shape.past == 0
  Rows<const Real> initial;         // (B, G, Dk, Dv): token(i) is row i of A; null means zero
  Rows<Real> reads;                 // (B, H, T, Dv)
  Rows<Real> final_state;           // (B, G, Dk, Dv), may be `initial`; null if not wanted
  Real* saved = nullptr;            // MemoryScanSavedFloats(shape) floats for the backward pass; null if not wanted
};

// Every gradient may be null. Those given are overwritten, including with zeros for tokens that were not written.
template <class Real>
struct MemoryScanBackwardArgs {
  MemoryScanShape shape;
  Rows<const Real> q;
  MemoryWrites<const Real> writes;
  MemoryPast<const Real> past;
  Rows<const Real> initial;
  const Real* saved = nullptr;  // as filled by the forward pass
  Rows<const Real> d_reads;     // (B, H, T, Dv)
  Rows<const Real> d_final;     // (B, G, Dk, Dv); null means zero
  Rows<Real> d_q;               // (B, H, T, Dk)
  MemoryWrites<Real> d_writes;  // per token, also where the inputs are constant per head: sum over tokens for those
  MemoryWrites<Real> d_past;    // rows 0 .. past - 1, oldest first
  Rows<Real> d_initial;         // (B, G, Dk, Dv)
};

// One decode step (T = 1): write the evicted pair, then read, in one pass over A.
struct MemoryStepArgs {
  int64_t B = 1, H = 1, G = 1, Dk = 0, Dv = 0;
  WriteRule rule = WriteRule::kOuter;
  MemoryWrites<const float> evicted;  // (B, G, 1, *); a null k means that nothing is evicted: read only
  Rows<const float> q;                // (B, H, 1, Dk); null means that nothing is read
  Rows<float> state;                  // (B, G, Dk, Dv), updated in place
  Rows<float> reads;                  // (B, H, 1, Dv)
};

// Says what is wrong with the shapes, if anything; the other functions CHECK it. Cheap.
Status ValidateMemoryScan(const MemoryScanShape& shape);
Status ValidateMemoryStep(const MemoryStepArgs& args);

// Floats of scratch for one thread, and of `saved` for the whole call.
int64_t MemoryScanScratchFloats(const MemoryScanShape& shape);
int64_t MemoryScanBackwardScratchFloats(const MemoryScanShape& shape);
int64_t MemoryScanSavedFloats(const MemoryScanShape& shape);

// Items [begin, end) of B * G. All are computed; then, if a number of a state is infinite or NaN, the answer is kDiverged
// and names the first such head: delta gets there when b |k|^2 > 1 + exp(g) for long, gated_delta when it is more than
// 1 + exp(-g). A state never becomes finite again, so nothing is missed by looking at the end of a block. Reads of a
// finite state are not judged: they may overflow. The scan costs 4 T Dk Dv (reads, writes) + about 2 T C (Dk + Dv)
// FLOPs per item and query head, for chunks of C tokens. A step looks at each state that it writes or reads.
Status MemoryScanForward(const MemoryScanForwardArgs<float>& args, int64_t begin, int64_t end, float* scratch);
Status MemoryScanBackward(const MemoryScanBackwardArgs<float>& args, int64_t begin, int64_t end, float* scratch);
Status MemoryStep(const MemoryStepArgs& args, int64_t begin, int64_t end);

}  // namespace tensorcache
