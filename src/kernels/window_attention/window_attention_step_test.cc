// The decode step against its reference on every target, with rings of floats and of bf16.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/window_attention/window_attention_ref.h"
#include "kernels/window_attention/window_attention_testing.h"
#include "tensorcache/kernels/window_attention.h"

namespace tensorcache {
namespace {

using testing::Describe;
using testing::ExpectRowsNear;
using testing::ForEachTarget;
using testing::GuardedBuffer;
using testing::MaxAbsRows;
using testing::MaxRowNorm;
using testing::RowBuffer;
using testing::WeightUlps;
using testing::WindowProblem;

struct StepCase {
  WindowAttentionShape shape;  // T = 1
  int64_t capacity = 0;        // of the ring
  int64_t start = 0;
  bool q_sink = false;
};

// The upper halves of all floats of a buffer, pads and all: the same strides, and poison stays NaN.
std::vector<uint16_t> UpperHalves(const RowBuffer& x) {
  std::vector<uint16_t> halves;
  for (int64_t i = 0; i < x.buffer.size(); ++i) {
    halves.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(x.buffer[i]) >> 16));
  }
  return halves;
}

// A ring whose numbers are bf16, kept both ways. Slots without a token and sinks that are not seen are poisoned.
struct StepProblem {
  StepProblem(const StepCase& c, Rng& rng)
      : step_case(c),
        n(c.shape),
        q(n.B, n.H, 1, n.D, 1),
        q_sink(n.B, n.H, 1, n.D, 1),
        k(n.B, n.G, c.capacity, n.D, 2),
        v(n.B, n.G, c.capacity, n.Dv, 1),
        sink_k(n.B, n.G, n.S, n.D, 1),
        sink_v(n.B, n.G, n.S, n.Dv, 1) {
    q.FillNormal(rng);
    q_sink.FillNormal(rng);
    for (int64_t i = 0; i <= n.P; ++i) {
      for (RowBuffer* x : {&k, &v}) WindowProblem::FillToken(*x, (c.start + i) % c.capacity, rng, 1.0);
    }
    for (int64_t s = 0; s < std::min(n.S, n.position + 1 - n.W); ++s) {
      for (RowBuffer* x : {&sink_k, &sink_v}) WindowProblem::FillToken(*x, s, rng, 1.0);
    }
    for (RowBuffer* x : {&k, &v}) {
      x->ForEach([](float& y) { y = std::bit_cast<float>(std::bit_cast<uint32_t>(y) & 0xFFFF0000u); });
    }
    k_bf16 = UpperHalves(k);
    v_bf16 = UpperHalves(v);
  }

  KeyValueRing<float> Ring(float) const { return {k.crows(), v.crows(), step_case.capacity, step_case.start}; }
  KeyValueRing<uint16_t> Ring(uint16_t) const {
    const auto rows = [](const std::vector<uint16_t>& halves, const Rows<const float>& like) {
      return Rows<const uint16_t>{halves.data(), like.batch, like.head, like.token};
    };
    return {rows(k_bf16, k.crows()), rows(v_bf16, v.crows()), step_case.capacity, step_case.start};
  }

  template <class Stored>
  WindowAttentionStepArgs<float, Stored> Args(RowBuffer& out, RowBuffer& lse) const {
    return {.shape = n,
            .q = q.crows(),
            .ring = Ring(Stored()),
            .sink_k = sink_k.crows(),
            .sink_v = sink_v.crows(),
            .q_sink = step_case.q_sink ? q_sink.crows() : Rows<const float>(),
            .out = out.rows(),
            .lse = lse.rows()};
  }

  double Ulps() const {
    const double query = std::max(MaxRowNorm(q), MaxRowNorm(q_sink));
    const double key = std::max(MaxRowNorm(k), MaxRowNorm(sink_k));
    return WeightUlps(n, query * key / std::sqrt(static_cast<double>(n.D)));
  }
  double MaxValueElement() const { return std::max(MaxAbsRows(v), MaxAbsRows(sink_v)); }

  StepCase step_case;
  WindowAttentionShape n;
  RowBuffer q, q_sink, k, v, sink_k, sink_v;
  std::vector<uint16_t> k_bf16, v_bf16;
};

struct StepOutputs {
  explicit StepOutputs(const WindowAttentionShape& n) : out(n.B, n.H, 1, n.Dv, 1), lse(n.B, n.H, 1, 1, 1) {}

  RowBuffer out, lse;  // poisoned
};

void ExpectNear(const StepProblem& problem, const StepOutputs& actual, const StepOutputs& expected, double ulps) {
  ExpectRowsNear(actual.out, expected.out, problem.MaxValueElement(), ulps, "out");
  ExpectRowsNear(actual.lse, expected.lse, 1.0, ulps, "lse");
}

// All items in one call, or each in a call of its own, last first.
template <class Stored>
StepOutputs Step(const StepProblem& problem, bool item_by_item = false) {
  StepOutputs outputs(problem.n);
  const auto args = problem.Args<Stored>(outputs.out, outputs.lse);
  EXPECT_TRUE(ValidateWindowAttentionStep(args).ok()) << ValidateWindowAttentionStep(args).message();
  GuardedBuffer scratch(WindowAttentionScratchFloats(problem.n));
  const int64_t items = problem.n.B * problem.n.G, stride = item_by_item ? 1 : items;
  for (int64_t end = items; end > 0; end -= stride) {
    scratch.Poison();
    EXPECT_TRUE(WindowAttentionStep(args, end - stride, end, scratch.data()).ok());
  }
  EXPECT_TRUE(scratch.Intact());
  return outputs;
}

template <class Stored>
StepOutputs Reference(const StepProblem& problem) {
  StepOutputs outputs(problem.n);
  EXPECT_TRUE(
      WindowAttentionStepReference(problem.Args<Stored>(outputs.out, outputs.lse), 0, problem.n.B * problem.n.G).ok());
  return outputs;
}

void CheckStep(const StepCase& step_case, Rng& rng) {
  SCOPED_TRACE(Describe(step_case.shape) + "capacity=" + std::to_string(step_case.capacity) +
               " start=" + std::to_string(step_case.start));
  const StepProblem problem(step_case, rng);
  const StepOutputs reference = Reference<float>(problem), bf16_reference = Reference<uint16_t>(problem);
  EXPECT_EQ(reference.out.Values(), bf16_reference.out.Values());
  EXPECT_EQ(reference.lse.Values(), bf16_reference.lse.Values());

  const StepOutputs fp32 = Step<float>(problem), bf16 = Step<uint16_t>(problem);
  ExpectNear(problem, fp32, reference, problem.Ulps());
  ExpectNear(problem, bf16, bf16_reference, problem.Ulps());
  ExpectNear(problem, bf16, fp32, 2 * problem.Ulps());  // both sides err
  EXPECT_EQ(Step<float>(problem, true).out.Values(), fp32.out.Values());
  EXPECT_EQ(Step<uint16_t>(problem, true).out.Values(), bf16.out.Values());
}

TEST(WindowAttentionStepTest, MatchesReference) {
  ForEachTarget([](const std::string&) {
    Rng rng(40);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(rng.Below(static_cast<uint64_t>(n))); };
    for (int i = 0; i < 60; ++i) {
      WindowAttentionShape n{.B = 1 + below(2), .G = 1 + below(2), .T = 1, .D = 1 + below(90), .W = 1 + below(200)};
      n.H = n.G * (1 + below(9));
      n.Dv = 1 + below(90);
      n.S = below(5);
      n.P = below(n.W);
      n.position = n.P + below(2 * n.W);
      const int64_t capacity = n.P + 1 + below(4);
      CheckStep({.shape = n, .capacity = capacity, .start = below(capacity), .q_sink = i % 2 == 0}, rng);
    }
  });
}

// Whole vectors, windows longer than a block of keys, and rings that wrap before, inside and behind a block.
TEST(WindowAttentionStepTest, LongRings) {
  ForEachTarget([](const std::string&) {
    Rng rng(41);
    for (const int64_t D : {32, 64, 128, 144}) {
      for (const int64_t R : {1, 3, 4, 8}) {
        WindowAttentionShape n{.H = 2 * R, .G = 2, .T = 1, .D = D, .Dv = D, .W = 600, .S = 3, .position = 1500};
        if (D == 144) n.Dv = 80;
        n.P = D == 64 ? 599 : 548;
        for (const int64_t start : {int64_t{0}, int64_t{1}, int64_t{255}, n.P - 1}) {
          CheckStep({.shape = n, .capacity = n.P + 1 + start % 2, .start = start, .q_sink = R == 3}, rng);
        }
      }
    }
  });
}

TEST(WindowAttentionStepTest, HugeKeysStayFinite) {
  ForEachTarget([](const std::string&) {
    Rng rng(42);
    const StepCase step_case{.shape = {.H = 5, .T = 1, .D = 32, .Dv = 32, .W = 300, .P = 299, .position = 299},
                             .capacity = 300,
                             .start = 17};
    StepProblem problem(step_case, rng);
    problem.k.ForEach([](float& x) { x *= 0x1p20f; });  // stays bf16
    problem.k_bf16 = UpperHalves(problem.k);
    ExpectNear(problem, Step<float>(problem), Reference<float>(problem), problem.Ulps());
    ExpectNear(problem, Step<uint16_t>(problem), Reference<uint16_t>(problem), problem.Ulps());
  });
}

template <class Stored>
void ExpectMistakesAreNamed() {
  RowBuffer q(1, 1, 1, 8), out(1, 1, 1, 8);
  const std::vector<Stored> k(32);
  const Rows<const Stored> rows{.data = k.data(), .token = 8};
  WindowAttentionStepArgs<float, Stored> args{.shape = {.T = 1, .D = 8, .Dv = 8, .W = 4, .P = 3, .position = 3},
                                              .q = q.crows(),
                                              .ring = {.k = rows, .v = rows, .capacity = 4},
                                              .out = out.rows()};
  ASSERT_TRUE(ValidateWindowAttentionStep(args).ok());
  GuardedBuffer scratch(WindowAttentionScratchFloats(args.shape));
  EXPECT_EQ(WindowAttentionStep(args, 0, 2, scratch.data()).code(), StatusCode::kInvalidArgument);
  args.shape.W = 3;
  EXPECT_NE(ValidateWindowAttentionStep(args).message().find("more than W = 3"), std::string::npos);
  args.shape.W = 4;
  args.ring.capacity = 3;
  EXPECT_NE(ValidateWindowAttentionStep(args).message().find("capacity 3"), std::string::npos);
  args.ring.capacity = 4;
  args.shape.T = 2;
  EXPECT_NE(ValidateWindowAttentionStep(args).message().find("T = 1"), std::string::npos);
}

TEST(WindowAttentionStepTest, ValidateNamesTheMistake) {
  ExpectMistakesAreNamed<float>();
  ExpectMistakesAreNamed<uint16_t>();
}

}  // namespace
}  // namespace tensorcache
