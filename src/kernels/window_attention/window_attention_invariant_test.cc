// The invariant: however a sequence is cut into blocks and single steps, with a ring of the last W pairs carried
// between them, the outputs and the final ring are those of one block.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/window_attention/window_attention_testing.h"
#include "tensorcache/kernels/window_attention.h"

namespace tensorcache {
namespace {

using testing::Describe;
using testing::ExpectRowsNear;
using testing::ForEachTarget;
using testing::GuardedBuffer;
using testing::RowBuffer;
using testing::WeightUlps;

// A whole sequence: shape.T tokens from position 0.
struct Sequence {
  Sequence(const WindowAttentionShape& shape, bool own_sink_queries, Rng& rng)
      : n(shape),
        q(n.B, n.H, n.T, n.D, 3),
        k(n.B, n.G, n.T, n.D, 1),
        v(n.B, n.G, n.T, n.Dv, 2),
        q_sink(n.B, n.H, n.T, n.D, 1),
        own_sink_queries(own_sink_queries) {
    for (RowBuffer* x : {&q, &k, &v, &q_sink}) x->FillNormal(rng);
  }

  WindowAttentionShape n;
  RowBuffer q, k, v, q_sink;
  bool own_sink_queries;
};

Rows<const float> From(const RowBuffer& x, int64_t token) {
  Rows<const float> rows = x.crows();
  rows.data += token * rows.token;
  return rows;
}

// What is carried from block to block, as a caller keeps it: a ring of the last min(W, .) pairs, and the sinks seen so
// far.
struct State {
  explicit State(const Sequence& s)
      : sequence(s),
        capacity(std::max<int64_t>(1, std::min(s.n.W, s.n.T + 2))),
        k(s.n.B, s.n.G, capacity, s.n.D, 1),
        v(s.n.B, s.n.G, capacity, s.n.Dv, 3),
        sink_k(s.n.B, s.n.G, s.n.S, s.n.D, 2),
        sink_v(s.n.B, s.n.G, s.n.S, s.n.Dv, 1) {}

  static void Copy(const RowBuffer& from, int64_t from_token, RowBuffer& to, int64_t to_token) {
    for (int64_t b = 0; b < from.B; ++b) {
      for (int64_t h = 0; h < from.H; ++h) {
        std::copy_n(from.Row(b, h, from_token), from.D, to.Row(b, h, to_token));
      }
    }
  }

  void Push() {
    const int64_t slot = (start + count) % capacity;
    Copy(sequence.k, position, k, slot);
    Copy(sequence.v, position, v, slot);
    if (position < sequence.n.S) {
      Copy(sequence.k, position, sink_k, position);
      Copy(sequence.v, position, sink_v, position);
    }
    if (count == capacity) {
      start = (start + 1) % capacity;
    } else {
      ++count;
    }
    ++position;
  }

  KeyValueRing<float> Ring() const { return {.k = k.crows(), .v = v.crows(), .capacity = capacity, .start = start}; }

  const Sequence& sequence;
  int64_t capacity;
  int64_t start = 0, count = 0, position = 0;
  RowBuffer k, v, sink_k, sink_v;
};

// Runs the next `tokens` tokens as one block and pushes them.
void RunBlock(State& state, int64_t tokens, RowBuffer& out, GuardedBuffer& scratch) {
  const Sequence& s = state.sequence;
  WindowAttentionShape shape = s.n;
  shape.T = tokens;
  shape.P = state.count;
  shape.position = state.position;
  const int64_t t = state.position;
  Rows<float> out_rows = out.rows();
  out_rows.data += t * out_rows.token;
  // In the first block the sinks are the block's own first rows.
  const bool first = t == 0;
  const WindowAttentionArgs<float> args{.shape = shape,
                                        .q = From(s.q, t),
                                        .k = From(s.k, t),
                                        .v = From(s.v, t),
                                        .past = state.Ring(),
                                        .sink_k = first ? From(s.k, 0) : state.sink_k.crows(),
                                        .sink_v = first ? From(s.v, 0) : state.sink_v.crows(),
                                        .q_sink = s.own_sink_queries ? From(s.q_sink, t) : Rows<const float>(),
                                        .out = out_rows};
  ASSERT_TRUE(ValidateWindowAttention(args).ok()) << ValidateWindowAttention(args).message();
  // A block after the first may see sinks that it brings itself.
  for (int64_t i = 0; i < tokens && t + i < s.n.S; ++i) {
    State::Copy(s.k, t + i, state.sink_k, t + i);
    State::Copy(s.v, t + i, state.sink_v, t + i);
  }
  scratch.Poison();
  ASSERT_TRUE(WindowAttentionForward(args, 0, shape.B * shape.G, scratch.data()).ok());
  for (int64_t i = 0; i < tokens; ++i) state.Push();
}

// Runs the next token as a step: pushes it first, as a decoder does.
void RunStep(State& state, RowBuffer& out, GuardedBuffer& scratch) {
  const Sequence& s = state.sequence;
  const int64_t t = state.position;
  state.Push();
  WindowAttentionShape shape = s.n;
  shape.T = 1;
  shape.P = state.count - 1;
  shape.position = t;
  Rows<float> out_rows = out.rows();
  out_rows.data += t * out_rows.token;
  const WindowAttentionStepArgs<float> args{.shape = shape,
                                            .q = From(s.q, t),
                                            .ring = state.Ring(),
                                            .sink_k = state.sink_k.crows(),
                                            .sink_v = state.sink_v.crows(),
                                            .q_sink = s.own_sink_queries ? From(s.q_sink, t) : Rows<const float>(),
                                            .out = out_rows};
  ASSERT_TRUE(ValidateWindowAttentionStep(args).ok()) << ValidateWindowAttentionStep(args).message();
  scratch.Poison();
  ASSERT_TRUE(WindowAttentionStep(args, 0, shape.B * shape.G, scratch.data()).ok());
}

// The ring holds exactly the last min(W, T) tokens, oldest first.
void ExpectFinalRing(const State& state) {
  const Sequence& s = state.sequence;
  ASSERT_EQ(state.position, s.n.T);
  ASSERT_EQ(state.count, std::min(s.n.W, s.n.T));
  for (int64_t i = 0; i < state.count; ++i) {
    const int64_t slot = (state.start + i) % state.capacity, token = s.n.T - state.count + i;
    for (int64_t b = 0; b < s.n.B; ++b) {
      for (int64_t g = 0; g < s.n.G; ++g) {
        ASSERT_TRUE(std::equal(state.k.Row(b, g, slot), state.k.Row(b, g, slot) + s.n.D, s.k.Row(b, g, token)));
        ASSERT_TRUE(std::equal(state.v.Row(b, g, slot), state.v.Row(b, g, slot) + s.n.Dv, s.v.Row(b, g, token)));
      }
    }
  }
}

enum class Split { kOneBlock, kRandom, kSteps };

RowBuffer Run(const Sequence& s, Split split, Rng& rng) {
  RowBuffer out(s.n.B, s.n.H, s.n.T, s.n.Dv, 1);
  State state(s);
  GuardedBuffer scratch(WindowAttentionScratchFloats(s.n));  // does not depend on T or P
  if (split == Split::kOneBlock) RunBlock(state, s.n.T, out, scratch);
  while (state.position < s.n.T && !::testing::Test::HasFatalFailure()) {
    const int64_t left = s.n.T - state.position;
    if (split == Split::kSteps || rng.Below(4) == 0) {
      RunStep(state, out, scratch);
    } else {  // mostly short blocks, empty ones too
      const int64_t most = rng.Below(3) == 0 ? left : std::min<int64_t>(left, 9);
      RunBlock(state, static_cast<int64_t>(rng.Below(static_cast<uint64_t>(most + 1))), out, scratch);
    }
  }
  ExpectFinalRing(state);
  EXPECT_TRUE(scratch.Intact());
  EXPECT_TRUE(state.k.PadsIntact() && state.v.PadsIntact());
  return out;
}

void CheckInvariant(const WindowAttentionShape& shape, bool own_sink_queries, uint64_t seed) {
  SCOPED_TRACE(Describe(shape));
  Rng rng(seed, static_cast<uint64_t>(shape.T));
  const Sequence sequence(shape, own_sink_queries, rng);
  const RowBuffer whole = Run(sequence, Split::kOneBlock, rng);
  const double query = std::max(testing::MaxRowNorm(sequence.q), testing::MaxRowNorm(sequence.q_sink));
  const double logit = query * testing::MaxRowNorm(sequence.k) / std::sqrt(static_cast<double>(shape.D));
  // Both sides err.
  const double ulps = 2 * WeightUlps(shape, logit), magnitude = testing::MaxAbsRows(sequence.v);
  for (int repeat = 0; repeat < 2; ++repeat) {
    ExpectRowsNear(Run(sequence, Split::kRandom, rng), whole, magnitude, ulps, "random split");
  }
  ExpectRowsNear(Run(sequence, Split::kSteps, rng), whole, magnitude, ulps, "single steps");
}

TEST(WindowAttentionInvariantTest, AnySplitGivesTheSameOutputs) {
  ForEachTarget([](const std::string&) {
    uint64_t seed = 20;
    for (const int64_t D : {16, 32, 64, 80, 128}) {
      for (const int64_t W : {int64_t{1}, int64_t{12}, int64_t{37}, kUnboundedWindow}) {
        for (const int64_t S : {0, 4}) {
          WindowAttentionShape shape{.B = D == 32 ? 2 : 1, .H = D == 80 ? 2 : 6, .G = 2, .D = D, .W = W, .S = S};
          shape.Dv = D == 16 ? D + 1 : D;
          Rng rng(++seed);
          const int64_t window = std::min<int64_t>(W, 50);
          for (const int64_t T : {int64_t{0}, int64_t{1}, window - 1, window, window + 1, int64_t{63},
                                  static_cast<int64_t>(rng.Below(120))}) {
            shape.T = T;
            CheckInvariant(shape, S > 0 && D != 64, ++seed);
          }
        }
      }
    }
  });
}

TEST(WindowAttentionInvariantTest, LongSequences) {
  const std::string best = testing::BestTarget();
  ForEachTarget([&](const std::string& target) {
    if (target != best) return;
    for (const int64_t D : {16, 32, 64, 80, 128}) {
      for (const int64_t W : {int64_t{100}, kUnboundedWindow}) {
        CheckInvariant({.H = 2, .G = 1, .T = 1000, .D = D, .Dv = D, .W = W, .S = 4}, D == 32, 30);
      }
    }
  });
}

}  // namespace
}  // namespace tensorcache
