// Window attention, the first level of the cache: causal softmax attention over the last W keys, self included.
//
// A block of T tokens at absolute positions position .. position + T - 1 brings q, k, v; the keys and values of the P
// tokens before it come in a ring, those of the first S tokens of the sequence (the sinks) in arrays of their own. With
// absolute positions t (query) and i (key):
//
//   visible(t) = { i of past and block : t - W < i <= t }  and  { sink s : s <= t - W }      (a sink still inside the
//                                                                window is seen there, never twice)
//   logit(t, i) = scale q_t . k_i      for sinks scale q_sink_t . k_s
//   out_t = sum_i softmax_i(logit(t, .)) v_i,      lse_t = log sum_i exp logit(t, i)
//
// H query heads read G key/value heads (GQA): query head h reads head h / (H / G). The unit of work is an item = (batch
// b, key/value head g) = b * G + g with its H / G query heads; items are independent, and the caller hands ranges of
// them to threads. Nothing here starts a thread or keeps state, and only the references allocate. Cost: 4 D flops per
// visible (query, key) pair forward, 10 D backward; memory O(W) or less in scratch, never T x T.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "tensorcache/kernels/rows.h"
#include "tensorcache/status.h"

namespace tensorcache {

inline constexpr int64_t kUnboundedWindow = std::numeric_limits<int64_t>::max();

struct WindowAttentionShape {
  int64_t B = 1;                 // batch
  int64_t H = 1;                 // query heads, a multiple of G
  int64_t G = 1;                 // key/value heads
  int64_t T = 0;                 // tokens of the block; may be 0
  int64_t D = 0;                 // width of queries and keys
  int64_t Dv = 0;                // width of values and outputs
  int64_t W = kUnboundedWindow;  // window, >= 1; kUnboundedWindow (or anything >= P + T) sees everything given
  int64_t P = 0;                 // tokens of the past that are given, 0 .. position
  int64_t S = 0;                 // sink tokens
  int64_t position = 0;          // absolute position of the block's first token
};

// Keys and values in a ring of `capacity` slots: the i-th token, oldest first, is at slot (start + i) % capacity.
template <class Stored>
struct KeyValueRing {
  Rows<const Stored> k;  // (B, G, capacity, D)
  Rows<const Stored> v;  // (B, G, capacity, Dv)
  int64_t capacity = 0;
  int64_t start = 0;
};

template <class Real>
struct WindowAttentionArgs {
  WindowAttentionShape shape;
  Rows<const Real> q;         // (B, H, T, D)
  Rows<const Real> k;         // (B, G, T, D)
  Rows<const Real> v;         // (B, G, T, Dv)
  KeyValueRing<Real> past{};  // the P tokens position - P .. position - 1
  // (B, G, S, D) and (B, G, S, Dv): tokens 0 .. S-1. Only rows s <= position + T - 1 - W are read, so in the first
  // block they may point at the block's own first rows even if it has fewer than S.
  Rows<const Real> sink_k{};
  Rows<const Real> sink_v{};
  Rows<const Real> q_sink{};      // (B, H, T, D): the query that meets the sinks; none: q
  std::optional<double> scale{};  // default 1 / sqrt(D)
  Rows<Real> out{};               // (B, H, T, Dv)
  Rows<Real> lse{};               // (B, H, T), one number a row; optional
};

// Gradients, given `dout`. Everything that is written is overwritten, nothing is accumulated into; rows that no query
// saw get zeros. The optional ones are not computed when they have no data.
template <class Real>
struct WindowAttentionGrads {
  Rows<const Real> out;   // (B, H, T, Dv) of the forward pass
  Rows<const Real> lse;   // (B, H, T) of the forward pass
  Rows<const Real> dout;  // (B, H, T, Dv)
  Rows<Real> dq;          // (B, H, T, D); includes the sinks' part if there is no q_sink
  Rows<Real> dk;          // (B, G, T, D)
  Rows<Real> dv;          // (B, G, T, Dv)
  Rows<Real> dpast_k{};   // optional, (B, G, P, D), oldest first
  Rows<Real> dpast_v{};   // optional, (B, G, P, Dv)
  Rows<Real> dsink_k{};   // optional, (B, G, S, D); all S rows are written
  Rows<Real> dsink_v{};   // optional, (B, G, S, Dv)
  Rows<Real> dq_sink{};   // optional, (B, H, T, D); only with q_sink
};

// One decoded token: T = 1, and the ring already holds its key and value as the newest of P + 1 rows, P + 1 <= W. All
// of them are visible, plus the sinks s <= position - W. Stored is how the ring keeps its numbers: as Real, or, with
// Real = float, as uint16_t in bf16 (the upper half of a float's bits), half the memory to read; sinks are Real always.
template <class Real, class Stored = Real>
struct WindowAttentionStepArgs {
  WindowAttentionShape shape;
  Rows<const Real> q;  // (B, H, 1, D)
  KeyValueRing<Stored> ring;
  Rows<const Real> sink_k{};
  Rows<const Real> sink_v{};
  Rows<const Real> q_sink{};
  std::optional<double> scale{};
  Rows<Real> out{};  // (B, H, 1, Dv)
  Rows<Real> lse{};  // (B, H, 1), optional
};

// Sizes, and that the arrays they call for are there; names what is wrong. Strides and extents are the caller's
// promise. Instantiated for float and double, like the references, and those of the step for a bf16 ring too.
template <class Real>
Status ValidateWindowAttention(const WindowAttentionArgs<Real>& args);
template <class Real>
Status ValidateWindowAttentionBackward(const WindowAttentionArgs<Real>& args, const WindowAttentionGrads<Real>& grads);
template <class Real, class Stored>
Status ValidateWindowAttentionStep(const WindowAttentionStepArgs<Real, Stored>& args);

// The functions below take validated arguments and work on items [begin_item, end_item) of B * G; an item range outside
// is an error. `scratch` belongs to the calling thread for the duration of the call; any alignment, any content.
// Forward and step: O(64 (D + Dv)) floats.
int64_t WindowAttentionScratchFloats(const WindowAttentionShape& shape);
// Backward: also the key and value gradients of one window, O(min(W, P + T) (D + Dv)).
int64_t WindowAttentionBackwardScratchFloats(const WindowAttentionShape& shape);

Status WindowAttentionForward(const WindowAttentionArgs<float>& args, int64_t begin_item, int64_t end_item,
                              float* scratch);
// `args.out` and `args.lse` are not used: `grads` has its own.
Status WindowAttentionBackward(const WindowAttentionArgs<float>& args, const WindowAttentionGrads<float>& grads,
                               int64_t begin_item, int64_t end_item, float* scratch);
Status WindowAttentionStep(const WindowAttentionStepArgs<float>& args, int64_t begin_item, int64_t end_item,
                           float* scratch);
// As exact as the float step on the widened ring: bf16 widens without rounding.
Status WindowAttentionStep(const WindowAttentionStepArgs<float, uint16_t>& args, int64_t begin_item, int64_t end_item,
                           float* scratch);

}  // namespace tensorcache
