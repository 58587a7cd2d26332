// How memory_scan cuts its work: the chunks of a block, and the scratch tiles a chunk is computed in.
#pragma once

#include <cstdint>

#include "tensorcache/kernels/memory_scan.h"

namespace tensorcache {

// A stretch of queries and the tokens written with them. In exact mode query p of a chunk reads after its token p;
// chunks before the ring is full have no tokens. `rows` is the number of writes: `tokens`, or 1 for a chunk mean.
struct ScanChunk {
  int64_t query = 0, queries = 0;
  int64_t token = 0, tokens = 0;
  int64_t rows = 0;
};

int64_t ScanChunkCount(const MemoryScanShape& shape);
ScanChunk ScanChunkAt(const MemoryScanShape& shape, int64_t index);
// Tokens written during the block: 0 .. count - 1 of the joint numbering.
int64_t ScanWrittenTokens(const MemoryScanShape& shape);

// One product of the form sum_j weight (q . key_j) val_j. Wedge has two, (k, b v) and (v, -b k), the other rules one.
struct ScanStream {
  float* key_t = nullptr;  // Dk x CP
  float* val = nullptr;    // C x VP, with the write strength in it
  // Backward only.
  float* key = nullptr;    // C x KP
  float* val_t = nullptr;  // Dv x CP
  float* d_key = nullptr;  // C x KP
  float* d_val = nullptr;  // C x VP
};

// Tiles in one thread's scratch. Rows are padded to kTilePad floats: KP, VP, CP = padded Dk, Dv, C. What lies in the
// padding is arbitrary, also NaN: no product mixes padding columns into others.
struct ScanTiles {
  int64_t C = 0;   // rows of a chunk at most
  int64_t CQ = 0;  // queries of a chunk at most
  int64_t KP = 0, VP = 0, CP = 0;
  bool intra = false;  // queries see the writes of their own chunk (exact mode)
  int64_t streams = 1;
  // Delta rules: write p corrects what is read after the decays of P_{p - prediction_shift}. 1 for delta, which looks
  // before the decay of its own token, 0 for gated_delta.
  int64_t prediction_shift = 0;

  float* state = nullptr;         // Dk x VP
  float* work_state = nullptr;    // Dk x VP, wedge and backward
  float* work_state_t = nullptr;  // Dv x KP
  ScanStream stream[2];
  float* u = nullptr;          // C x VP: delta residuals; in the backward pass of every rule the unscaled values
  float* weighted = nullptr;   // C x VP
  float* scores = nullptr;     // C x CP
  float* mask = nullptr;       // C x CP: exp(P_p - P_j) for j <= p
  float* lower = nullptr;      // C x CP: L of the delta rules
  float* reads = nullptr;      // CQ x VP
  float* log_decay = nullptr;  // the rest: CP each
  float* strength = nullptr;
  float* prefix_hi = nullptr;  // P_p, the sum of log-decays up to p, as an unevaluated sum of two floats
  float* prefix_lo = nullptr;
  float* decay = nullptr;             // exp(P_p)
  float* decay_prediction = nullptr;  // exp(P_{p - prediction_shift}), P_{-1} = 0
  float* decay_end = nullptr;         // exp(P_{n-1} - P_p)

  // Backward only.
  float* d_state = nullptr;    // Dk x VP
  float* state_t = nullptr;    // Dv x KP
  float* q = nullptr;          // CQ x KP
  float* d_q = nullptr;        // CQ x KP
  float* d_reads = nullptr;    // CQ x VP
  float* d_scores = nullptr;   // C x CP
  float* d_x = nullptr;        // C x VP
  double* d_prefix = nullptr;  // CP
  double* d_strength = nullptr;
};

// What scan and step say of an item whose state is not finite any more.
Status StateDiverged(WriteRule rule, int64_t b, int64_t g);

enum class ScanPass { kForward, kBackward };

// Lays the tiles out from `base` (null: only measure); returns the floats needed.
int64_t CarveScanTiles(const MemoryScanShape& shape, ScanPass pass, float* base, ScanTiles* tiles);

}  // namespace tensorcache
