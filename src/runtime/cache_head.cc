#include "runtime/cache_head.h"

#include <algorithm>
#include <cstring>

#include "kernels/matmul/matmul.h"
#include "kernels/window_attention/window_attention.h"
#include "runtime/head_memory.h"

namespace tensorcache::runtime {
namespace {

// Stored numbers: fp32 as they are, bf16 as the upper half.
void Store(const float* from, int64_t n, float* to) { std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float)); }
void Store(const float* from, int64_t n, uint16_t* to) { Fp32ToBf16(from, n, to); }

// The head's part of the ring.
template <class Stored>
struct RingView {
  explicit RingView(const HeadBlock& in)
      : capacity(in.arrays.capacity),
        width(in.spec.D()),
        k(in.arrays.k.As<Stored>() + in.head * capacity * width),
        v(in.arrays.v.As<Stored>() + in.head * capacity * width) {}

  KeyValueRing<Stored> From(int64_t first_token) const {
    return {.k = {.data = k, .token = width},
            .v = {.data = v, .token = width},
            .capacity = capacity,
            .start = first_token % capacity};
  }

  int64_t capacity, width;
  Stored* k;
  Stored* v;
};

// A view of (tokens, D) rows that lie in the ring, as floats: in place, or widened into the arena.
KeyValueRing<float> AsFloats(const KeyValueRing<float>& ring, int64_t, Arena&) { return ring; }
KeyValueRing<float> AsFloats(const KeyValueRing<uint16_t>& ring, int64_t tokens, Arena& arena) {
  const int64_t width = ring.k.token;
  const auto widen = [&](const Rows<const uint16_t>& rows) {
    float* out = arena.Take(tokens * width);
    for (int64_t i = 0; i < tokens; ++i) {
      Bf16ToFp32(rows.At(0, 0, (ring.start + i) % ring.capacity), width, out + i * width);
    }
    return Rows<const float>{.data = out, .token = width};
  };
  return {.k = widen(ring.k), .v = widen(ring.v), .capacity = std::max<int64_t>(tokens, 1), .start = 0};
}

// Rows of `heads` heads, (heads, tokens, D) and dense, rotated.
const float* Rotated(const HeadBlock& in, const float* x, int64_t stride, int64_t heads, RopeRows rope, Arena& arena) {
  const int64_t T = in.block.tokens, D = in.spec.D();
  float* out = arena.Take(heads * T * D);
  if (rope.cos == nullptr) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t t = 0; t < T; ++t) Store(x + t * stride + h * D, D, out + (h * T + t) * D);
    }
    return out;
  }
  ApplyRope({.in = {.data = x, .head = D, .token = stride},
             .out = {.data = out, .head = T * D, .token = D},
             .heads = heads,
             .tokens = T,
             .dims = D,
             .rotary_dims = D,
             .cos = {.data = rope.cos, .token = D / 2},
             .sin = {.data = rope.sin, .token = D / 2},
             .pairing = in.spec.config.rope.pairing});
  return out;
}

// What the ring will hold is what the block sees of itself, so that no split of the text changes anything.
void RoundLikeTheRing(float* x, int64_t n, Arena& arena) {
  auto* bits = reinterpret_cast<uint16_t*>(arena.Take((n + 1) / 2));
  Fp32ToBf16(x, n, bits);
  Bf16ToFp32(bits, n, x);
}

// The sinks among the block's tokens. A sink's index in the cache is its position: it is rotated already.
void AddSinks(const HeadBlock& in, const HeadRows& rows) {
  const int64_t S = in.spec.Sinks(), D = in.spec.D();
  const int64_t added = std::min(S - in.position, in.block.tokens);
  if (added <= 0) return;
  const int64_t offset = (in.head * S + in.position) * D;
  Store(rows.k, added * D, in.arrays.sink_k.As<float>() + offset);
  for (int64_t t = 0; t < added; ++t) Store(rows.v.At(0, 0, t), D, in.arrays.sink_v.As<float>() + offset + t * D);
}

template <class Args>
void SetSinks(const HeadBlock& in, const float* q_sink, Args& args) {
  const int64_t S = in.spec.Sinks(), D = in.spec.D(), T = in.block.tokens;
  if (S == 0) return;
  args.shape.S = S;
  args.sink_k = {.data = in.arrays.sink_k.As<float>() + in.head * S * D, .token = D};
  args.sink_v = {.data = in.arrays.sink_v.As<float>() + in.head * S * D, .token = D};
  args.q_sink = {.data = q_sink, .head = T * D, .token = D};
}

WindowAttentionShape ShapeOf(const HeadBlock& in, int64_t past) {
  return {.H = in.spec.R(),
          .T = in.block.tokens,
          .D = in.spec.D(),
          .Dv = in.spec.D(),
          .W = in.spec.IsFull() ? kUnboundedWindow : in.spec.config.cache.window,
          .P = past,
          .position = in.position};
}

Rows<float> LocalRows(const HeadBlock& in) {
  const int64_t D = in.spec.D();
  return {.data = in.block.local + in.head * in.spec.R() * D, .head = D, .token = in.block.local_stride};
}

template <class Stored>
void Append(const HeadBlock& in, const HeadRows& rows, const RingView<Stored>& ring) {
  const int64_t T = in.block.tokens, D = in.spec.D();
  for (int64_t t = std::max<int64_t>(0, T - ring.capacity); t < T; ++t) {
    const int64_t row = (in.position + t) % ring.capacity;
    Store(rows.k + t * D, D, ring.k + row * D);
    Store(rows.v.At(0, 0, t), D, ring.v + row * D);
  }
}

// The ring holds the token already.
template <class Stored>
Status AttendToken(const HeadBlock& in, const HeadRows& rows, const float* q_sink, const RingView<Stored>& ring,
                   Arena& arena) {
  const int64_t D = in.spec.D();
  const int64_t seen = in.spec.IsFull() ? in.position + 1 : std::min(in.position + 1, ring.capacity);
  WindowAttentionStepArgs<float, Stored> args{.shape = ShapeOf(in, seen - 1),
                                              .q = {.data = rows.q, .head = D, .token = D},
                                              .ring = ring.From(in.position + 1 - seen),
                                              .out = LocalRows(in)};
  SetSinks(in, q_sink, args);
  return WindowAttentionStep(args, 0, 1, arena.Take(WindowAttentionScratchFloats(args.shape)));
}

Status AttendBlock(const HeadBlock& in, const HeadRows& rows, const float* q_sink, const KeyValueRing<float>& past,
                   int64_t past_tokens, Arena& arena) {
  const int64_t D = in.spec.D(), T = in.block.tokens;
  WindowAttentionArgs<float> args{.shape = ShapeOf(in, past_tokens),
                                  .q = {.data = rows.q, .head = T * D, .token = D},
                                  .k = {.data = rows.k, .token = D},
                                  .v = rows.v,
                                  .past = past,
                                  .out = LocalRows(in)};
  SetSinks(in, q_sink, args);
  return WindowAttentionForward(args, 0, 1, arena.Take(WindowAttentionScratchFloats(args.shape)));
}

// Queries, keys and values as window and memory see them.
template <class Stored>
HeadRows MakeRows(const HeadBlock& in, Arena& arena) {
  const int64_t T = in.block.tokens, D = in.spec.D(), R = in.spec.R();
  HeadRows rows;
  rows.plain_q = {.data = in.block.q + in.head * R * D, .head = D, .token = in.block.q_stride};
  rows.plain_k = {.data = in.block.k + in.head * D, .token = in.block.k_stride};
  rows.v = {.data = in.block.v + in.head * D, .token = in.block.v_stride};
  rows.q = Rotated(in, rows.plain_q.data, in.block.q_stride, R, in.rope, arena);
  float* k = const_cast<float*>(Rotated(in, rows.plain_k.data, in.block.k_stride, 1, in.rope, arena));
  rows.k = k;
  if constexpr (std::is_same_v<Stored, uint16_t>) {
    RoundLikeTheRing(k, T * D, arena);
    float* v = arena.Take(T * D);
    for (int64_t t = 0; t < T; ++t) Store(rows.v.At(0, 0, t), D, v + t * D);
    RoundLikeTheRing(v, T * D, arena);
    rows.v = {.data = v, .token = D};
  }
  return rows;
}

template <class Stored>
Status Advance(const HeadBlock& in, Arena& arena) {
  const int64_t T = in.block.tokens, D = in.spec.D();
  const HeadRows rows = MakeRows<Stored>(in, arena);
  const float* q_sink = nullptr;
  if (in.spec.Sinks() > 0) {
    AddSinks(in, rows);
    q_sink = Rotated(in, rows.plain_q.data, in.block.q_stride, in.spec.R(), in.sink_query, arena);
  }
  const RingView<Stored> ring(in);
  const bool has_memory = in.spec.IsInfini() || in.memory.present;
  if (T == 1) {
    if (has_memory) {
      EvictedPair evicted;  // what this token pushes out of the window
      if (!in.spec.IsFull() && in.position >= ring.capacity) {
        const int64_t row = in.position % ring.capacity;
        const KeyValueRing<float> pair = AsFloats(KeyValueRing<Stored>{.k = {.data = ring.k + row * D, .token = D},
                                                                       .v = {.data = ring.v + row * D, .token = D},
                                                                       .capacity = 1},
                                                  1, arena);
        evicted = {.k = pair.k.data, .v = pair.v.data};
      }
      StepMemory(in, rows, evicted, arena);
    }
    Append(in, rows, ring);
    return in.block.local == nullptr ? OkStatus() : AttendToken(in, rows, q_sink, ring, arena);
  }
  const int64_t past_tokens = in.spec.IsFull() ? in.position : std::min(in.position, ring.capacity);
  const KeyValueRing<float> past = AsFloats(ring.From(in.position - past_tokens), past_tokens, arena);
  if (in.block.local != nullptr) TC_RETURN_IF_ERROR(AttendBlock(in, rows, q_sink, past, past_tokens, arena));
  if (has_memory) TC_RETURN_IF_ERROR(ScanMemory(in, rows, past, past_tokens, arena));
  Append(in, rows, ring);
  return OkStatus();
}

}  // namespace

Status AdvanceHead(const HeadBlock& in, Arena& arena) {
  return in.spec.config.ring == RingType::kBf16 ? Advance<uint16_t>(in, arena) : Advance<float>(in, arena);
}

}  // namespace tensorcache::runtime
