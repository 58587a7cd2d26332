// One layer of a method at work. Its unit of work is one key/value head of one sequence, with the query heads that share it:
// heads do not know of each other.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "methods/method.h"
#include "tensorcache/kernels/rows.h"
#include "tensorcache/kernels/window_attention.h"

namespace tensorcache::methods {

// Cosines and sines, rows of D / 2; null: nothing is rotated.
struct RopeRows {
  const float* cos = nullptr;
  const float* sin = nullptr;
};

struct RotatedArgs {
  Rows<const float> rows;  // (heads, T, D)
  int64_t heads = 1, T = 0, D = 0;
  RopeRows rope;
  RopePairing pairing = RopePairing::kHalfSplit;
  bool inverse = false;  // turns back
};
// Copies, dense (heads, T, D) and rotated, to `out` or into the arena.
void Rotate(const RotatedArgs& args, float* out);
float* Rotated(const RotatedArgs& args, Arena& arena);

// A block of tokens as one head sees it.
struct HeadBlock {
  int64_t head = 0;                    // g
  int64_t position = 0;                // of the block's first token
  int64_t T = 0;                       // tokens
  int64_t R = 1;                       // query heads
  int64_t D = 0;                       // their width
  const float* q = nullptr;            // (R, T, D) dense, rotated
  const float* k = nullptr;            // (T, D) dense, rotated; rounded as the window rounds them
  Rows<const float> v;                 // (T, D), rounded likewise
  Rows<const float> plain_q, plain_k;  // as they came: (R, T, D) and (T, D)
  Rows<const float> gates;             // (T, n): Method::TokenGates
  RopeRows rope;                       // for the block's tokens
  RopeRows extra_rope;                 // for what Layer::ExtraRope asked for
  std::span<float* const> arrays;      // the head's part of each array the method keeps
  Rows<float> reads;                   // (R, T, D): where reads go
};

// The pair that leaves the window; null: none does.
struct EvictedPair {
  const float* k = nullptr;
  const float* v = nullptr;
};

// The window before the block, oldest token first.
struct PastWindow {
  KeyValueRing<float> ring;
  int64_t tokens = 0;
};

// Keys and values that are seen besides the window's; S = 0: none.
struct SinkRows {
  int64_t S = 0;
  const float* k = nullptr;  // (S, D)
  const float* v = nullptr;
  const float* q = nullptr;  // (R, T, D): the queries as the sinks see them
};

// Immutable; all sequences and threads share it. The first level, attention over the window, is the caller's; a method adds to
// it or has a second level of its own. The defaults are those of a plain window.
class Layer {
 public:
  virtual ~Layer() = default;

  // Positions of tokens for which the method wants rotary rows, besides the block's own.
  virtual std::vector<int64_t> ExtraRope(int64_t /*position*/, int64_t /*tokens*/) const { return {}; }
  // Keeps those of the block's tokens that are sinks, and tells what its queries see.
  virtual SinkRows Sinks(const HeadBlock& /*block*/, Arena& /*arena*/) const { return {}; }
  // Whether the calls below do anything.
  virtual bool has_memory() const { return false; }
  // A block of one token: writes what it evicts (or what the method writes instead), and reads. kDiverged if reads left the
  // finite numbers.
  virtual Status Step(const HeadBlock& block, const EvictedPair& evicted, Arena& arena) const;
  // A block of any length.
  virtual Status Scan(const HeadBlock& block, const PastWindow& past, Arena& arena) const;
};

// ----- how a model joins the two levels ------------------------------------------------------------------------------

// Rows of one layer before its out projection.
struct FusionRows {
  int64_t rows = 0;
  const float* x = nullptr;  // (rows, E): what the projections to q, k and v were made from
  int64_t E = 0;
  const float* input =
      nullptr;             // (rows, any) dense: what the tensor of role kFusionInput makes of x; null: there is none
  float* local = nullptr;  // (rows, H D), `stride` floats from row to row; the reads stand H D floats behind
  int64_t width = 0;       // H D
  int64_t stride = 0;
  int64_t D = 0;
};

// output = W_o local + sum of factor * W reads over `matrices`, after Apply has had its way with local and reads.
class Fusion {
 public:
  struct OutputMatrix {
    LearnedTensor tensor;  // (E, H D)
    float factor = 1;
  };
  virtual ~Fusion() = default;
  virtual bool has_reads() const { return false; }
  virtual std::vector<OutputMatrix> matrices() const { return {}; }
  virtual void Apply(const FusionRows& /*rows*/) const {}
};

}  // namespace tensorcache::methods
