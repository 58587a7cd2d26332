#include "runtime/cache_head.h"

#include <algorithm>
#include <cstring>

#include "tensorcache/kernels/matmul.h"
#include "tensorcache/kernels/window_attention.h"

namespace tensorcache::runtime {
namespace {

using methods::EvictedPair;
using methods::HeadBlock;
using methods::PastWindow;
using methods::Rotated;
using methods::SinkRows;

// Stored numbers: fp32 as they are, bf16 as the upper half.
void Store(const float* from, int64_t n, float* to) { std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float)); }
void Store(const float* from, int64_t n, uint16_t* to) { Fp32ToBf16(from, n, to); }

// The head's part of the ring.
template <class Stored>
struct RingView {
  explicit RingView(const HeadWork& in)
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

// What the ring will hold is what the block sees of itself, so that no split of the text changes anything.
void RoundLikeTheRing(float* x, int64_t n, Arena& arena) {
  auto* bits = reinterpret_cast<uint16_t*>(arena.Take((n + 1) / 2));
  Fp32ToBf16(x, n, bits);
  Bf16ToFp32(bits, n, x);
}

WindowAttentionShape ShapeOf(const HeadWork& in, int64_t past) {
  return {.H = in.spec.R(),
          .T = in.block.tokens,
          .D = in.spec.D(),
          .Dv = in.spec.D(),
          .W = in.spec.keeps_everything ? kUnboundedWindow : in.spec.config.cache.window,
          .P = past,
          .position = in.position};
}

Rows<float> LocalRows(const HeadWork& in) {
  const int64_t D = in.spec.D();
  return {.data = in.block.local + in.head * in.spec.R() * D, .head = D, .token = in.block.local_stride};
}

template <class Args>
void SetSinks(const HeadBlock& block, const SinkRows& sinks, Args& args) {
  if (sinks.S == 0) return;
  args.shape.S = sinks.S;
  args.sink_k = {.data = sinks.k, .token = block.D};
  args.sink_v = {.data = sinks.v, .token = block.D};
  args.q_sink = {.data = sinks.q, .head = block.T * block.D, .token = block.D};
}

template <class Stored>
void Append(const HeadBlock& block, const RingView<Stored>& ring) {
  for (int64_t t = std::max<int64_t>(0, block.T - ring.capacity); t < block.T; ++t) {
    const int64_t row = (block.position + t) % ring.capacity;
    Store(block.k + t * block.D, block.D, ring.k + row * block.D);
    Store(block.v.At(0, 0, t), block.D, ring.v + row * block.D);
  }
}

// The ring holds the token already.
template <class Stored>
Status AttendToken(const HeadWork& in, const HeadBlock& block, const SinkRows& sinks, const RingView<Stored>& ring,
                   Arena& arena) {
  const int64_t seen = in.spec.keeps_everything ? in.position + 1 : std::min(in.position + 1, ring.capacity);
  WindowAttentionStepArgs<float, Stored> args{.shape = ShapeOf(in, seen - 1),
                                              .q = {.data = block.q, .head = block.D, .token = block.D},
                                              .ring = ring.From(in.position + 1 - seen),
                                              .out = LocalRows(in)};
  SetSinks(block, sinks, args);
  return WindowAttentionStep(args, 0, 1, arena.Take(WindowAttentionScratchFloats(args.shape)));
}

Status AttendBlock(const HeadWork& in, const HeadBlock& block, const SinkRows& sinks, const PastWindow& past,
                   Arena& arena) {
  WindowAttentionArgs<float> args{.shape = ShapeOf(in, past.tokens),
                                  .q = {.data = block.q, .head = block.T * block.D, .token = block.D},
                                  .k = {.data = block.k, .token = block.D},
                                  .v = block.v,
                                  .past = past.ring,
                                  .out = LocalRows(in)};
  SetSinks(block, sinks, args);
  return WindowAttentionForward(args, 0, 1, arena.Take(WindowAttentionScratchFloats(args.shape)));
}

// Where the head's reads go; if nobody wants them, into the arena.
Rows<float> ReadRows(const HeadWork& in, Arena& arena) {
  const int64_t D = in.spec.D(), T = in.block.tokens, R = in.spec.R();
  if (!in.method.has_memory()) return {};
  if (in.block.reads == nullptr) return {.data = arena.Take(R * T * D), .head = T * D, .token = D};
  return {.data = in.block.reads + in.head * R * D, .head = D, .token = in.block.reads_stride};
}

// The head's part of each array that the method keeps.
std::span<float* const> ArraysOf(const HeadWork& in, Arena& arena) {
  std::vector<Buffer>& all = in.arrays.of_method;
  auto** parts = reinterpret_cast<float**>(arena.Take(static_cast<int64_t>(2 * all.size())));  // a pointer takes two
  static_assert(sizeof(float*) <= 2 * sizeof(float));
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t floats = all[i].bytes() / static_cast<int64_t>(sizeof(float)) / in.spec.G();
    parts[i] = all[i].As<float>() + in.head * floats;
  }
  return {parts, all.size()};
}

// Queries, keys and values as window and memory see them.
template <class Stored>
HeadBlock MakeBlock(const HeadWork& in, Arena& arena) {
  const int64_t T = in.block.tokens, D = in.spec.D(), R = in.spec.R();
  const RopePairing pairing = in.spec.config.rope.pairing;
  HeadBlock block{.head = in.head, .position = in.position, .T = T, .R = R, .D = D};
  block.plain_q = {.data = in.block.q + in.head * R * D, .head = D, .token = in.block.q_stride};
  block.plain_k = {.data = in.block.k + in.head * D, .token = in.block.k_stride};
  block.v = {.data = in.block.v + in.head * D, .token = in.block.v_stride};
  if (in.gates > 0) block.gates = {.data = in.block.gates + in.head * in.gates, .token = in.block.gates_stride};
  block.rope = in.rope;
  block.extra_rope = in.extra_rope;
  block.q = Rotated({.rows = block.plain_q, .heads = R, .T = T, .D = D, .rope = in.rope, .pairing = pairing}, arena);
  float* k = Rotated({.rows = block.plain_k, .T = T, .D = D, .rope = in.rope, .pairing = pairing}, arena);
  block.k = k;
  if constexpr (std::is_same_v<Stored, uint16_t>) {
    RoundLikeTheRing(k, T * D, arena);
    float* v = arena.Take(T * D);
    for (int64_t t = 0; t < T; ++t) Store(block.v.At(0, 0, t), D, v + t * D);
    RoundLikeTheRing(v, T * D, arena);
    block.v = {.data = v, .token = D};
  }
  block.arrays = ArraysOf(in, arena);
  block.reads = ReadRows(in, arena);
  return block;
}

// What one more token pushes out of the window.
template <class Stored>
EvictedPair Evicted(const HeadWork& in, const RingView<Stored>& ring, Arena& arena) {
  if (in.spec.keeps_everything || in.position < ring.capacity) return {};
  const int64_t row = in.position % ring.capacity, D = in.spec.D();
  const KeyValueRing<float> pair = AsFloats(
      KeyValueRing<Stored>{
          .k = {.data = ring.k + row * D, .token = D}, .v = {.data = ring.v + row * D, .token = D}, .capacity = 1},
      1, arena);
  return {.k = pair.k.data, .v = pair.v.data};
}

template <class Stored>
Status Advance(const HeadWork& in, Arena& arena) {
  const HeadBlock block = MakeBlock<Stored>(in, arena);
  const SinkRows sinks = in.method.Sinks(block, arena);
  const RingView<Stored> ring(in);
  if (block.T == 1) {
    Status remembered;
    if (in.method.has_memory()) remembered = in.method.Step(block, Evicted(in, ring, arena), arena);
    Append(block, ring);
    TC_RETURN_IF_ERROR(remembered);
    return in.block.local == nullptr ? OkStatus() : AttendToken(in, block, sinks, ring, arena);
  }
  const int64_t past_tokens = in.spec.keeps_everything ? in.position : std::min(in.position, ring.capacity);
  const PastWindow past = {.ring = AsFloats(ring.From(in.position - past_tokens), past_tokens, arena),
                           .tokens = past_tokens};
  if (in.block.local != nullptr) TC_RETURN_IF_ERROR(AttendBlock(in, block, sinks, past, arena));
  if (in.method.has_memory()) TC_RETURN_IF_ERROR(in.method.Scan(block, past, arena));
  Append(block, ring);
  return OkStatus();
}

}  // namespace

Status AdvanceHead(const HeadWork& in, Arena& arena) {
  return in.spec.config.ring == RingType::kBf16 ? Advance<uint16_t>(in, arena) : Advance<float>(in, arena);
}

}  // namespace tensorcache::runtime
