// Window attention: SIMD against the reference on every target, the reference's gradients against finite differences,
// and the invariant that any split of a sequence into blocks and steps gives the same outputs.
#include "tensorcache/kernels/window_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/window_attention/window_attention_ref.h"
#include "kernels/window_attention/window_attention_testing.h"

namespace tensorcache {
namespace {

using testing::Describe;
using testing::ExpectRowsNear;
using testing::ForEachTarget;
using testing::GuardedBuffer;
using testing::RowBuffer;
using testing::WeightUlps;
using testing::WindowCase;
using testing::WindowProblem;

std::vector<WindowCase> OddCases() {
  std::vector<WindowCase> cases;
  const auto add = [&](WindowAttentionShape shape, int64_t extra_capacity = 0, int64_t start = 0, bool q_sink = false) {
    cases.push_back({.shape = shape, .capacity = shape.P + extra_capacity, .start = start, .q_sink = q_sink});
  };
  add({.T = 0, .D = 16, .Dv = 16, .W = 4});
  add({.T = 0, .D = 16, .Dv = 16, .W = 4, .P = 3, .S = 2, .position = 9}, 2, 3);
  add({.T = 1, .D = 1, .Dv = 1, .W = 1});
  add({.T = 70, .D = 16, .Dv = 17, .W = 1, .P = 1, .position = 1}, 1, 1);
  add({.T = 65, .D = 32, .Dv = 33, .W = 64});
  add({.T = 64, .D = 64, .Dv = 64, .W = 64, .P = 63, .position = 100});
  add({.H = 6, .G = 2, .T = 33, .D = 19, .Dv = 20, .W = 7, .P = 7, .S = 3, .position = 7}, 3, 8, true);
  add({.B = 2, .H = 4, .G = 4, .T = 130, .D = 80, .Dv = 81, .W = 37, .P = 50, .S = 5, .position = 60}, 0, 13);
  add({.B = 2, .H = 8, .G = 2, .T = 50, .D = 128, .Dv = 129, .P = 29, .position = 29}, 6, 30);
  add({.H = 5, .G = 1, .T = 40, .D = 7, .Dv = 3, .W = 20, .P = 11, .S = 70, .position = 130}, 5, 15, true);
  add({.H = 70, .G = 1, .T = 3, .D = 13, .Dv = 14, .W = 2, .P = 2, .S = 1, .position = 3}, 0, 1);
  add({.T = 100, .D = 16, .Dv = 16, .W = 1000, .P = 5, .S = 4, .position = 1200}, 1, 5, true);
  add({.T = 200, .D = 33, .Dv = 1, .W = 90, .P = 3, .S = 2, .position = 40}, 0, 0, true);
  return cases;
}

std::vector<WindowCase> RandomCases(int count, int64_t max_tokens, uint64_t seed) {
  Rng rng(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng.Below(static_cast<uint64_t>(n))); };
  std::vector<WindowCase> cases;
  for (int i = 0; i < count; ++i) {
    WindowAttentionShape n{.B = 1 + below(2), .G = 1 + below(3), .T = below(max_tokens), .D = 1 + below(70)};
    n.H = n.G * (1 + below(4));
    n.Dv = 1 + below(70);
    n.position = below(2 * max_tokens);
    n.P = below(n.position + 1);
    n.S = below(6);
    n.W = below(4) == 0 ? kUnboundedWindow : 1 + below(max_tokens);
    const int64_t capacity = n.P + below(5);
    cases.push_back(
        {.shape = n, .capacity = capacity, .start = capacity == 0 ? 0 : below(capacity), .q_sink = below(2) == 0});
  }
  return cases;
}

struct Outputs {
  explicit Outputs(const WindowAttentionShape& n) : out(n.B, n.H, n.T, n.Dv, 2), lse(n.B, n.H, n.T, 1, 1) {}
  RowBuffer out, lse;
};

// Runs the items one range after another.
void RunForward(const WindowAttentionArgs<float>& args) {
  GuardedBuffer scratch(WindowAttentionScratchFloats(args.shape));
  const int64_t items = args.shape.B * args.shape.G;
  for (const auto& [begin, end] : {std::pair{int64_t{0}, items / 2}, std::pair{items / 2, items}}) {
    scratch.Poison();
    ASSERT_TRUE(WindowAttentionForward(args, begin, end, scratch.data()).ok());
  }
  EXPECT_TRUE(scratch.Intact());
}

void CheckForward(const WindowCase& c) {
  SCOPED_TRACE(Describe(c.shape));
  Rng rng(7, static_cast<uint64_t>(c.shape.T + 31 * c.shape.D));
  const WindowProblem problem(c, rng);
  Outputs fast(c.shape), ref(c.shape);
  const auto args = problem.Args(fast.out, fast.lse), ref_args = problem.Args(ref.out, ref.lse);
  ASSERT_TRUE(ValidateWindowAttention(args).ok()) << ValidateWindowAttention(args).message();
  RunForward(args);
  ASSERT_TRUE(WindowAttentionForwardReference(ref_args, 0, c.shape.B * c.shape.G).ok());
  const double ulps = WeightUlps(c.shape, problem.LogitBound());
  ExpectRowsNear(fast.out, ref.out, problem.MaxValueElement(), ulps, "out");
  ExpectRowsNear(fast.lse, ref.lse, 1.0, ulps, "lse");
}

TEST(WindowAttentionTest, ForwardMatchesReference) {
  const std::string best = testing::BestTarget();
  ForEachTarget([&](const std::string& target) {
    for (const WindowCase& c : OddCases()) CheckForward(c);
    for (const WindowCase& c : RandomCases(target == best ? 60 : 15, 150, 3)) CheckForward(c);
  });
}

TEST(WindowAttentionTest, LargeBlock) {
  CheckForward({.shape = {.H = 2, .T = 1500, .D = 64, .Dv = 64, .W = 512, .P = 300, .S = 4, .position = 2000},
                .capacity = 512,
                .start = 400});
  CheckForward({.shape = {.T = 1100, .D = 128, .Dv = 128}});
}

struct Grads {
  explicit Grads(const WindowAttentionShape& n)
      : dq(n.B, n.H, n.T, n.D, 1),
        dk(n.B, n.G, n.T, n.D, 2),
        dv(n.B, n.G, n.T, n.Dv, 3),
        dpast_k(n.B, n.G, n.P, n.D, 1),
        dpast_v(n.B, n.G, n.P, n.Dv, 1),
        dsink_k(n.B, n.G, n.S, n.D, 3),
        dsink_v(n.B, n.G, n.S, n.Dv, 1),
        dq_sink(n.B, n.H, n.T, n.D, 5) {}

  WindowAttentionGrads<float> Args(const WindowProblem& problem, const Outputs& forward, const RowBuffer& dout) {
    return {.out = forward.out.crows(),
            .lse = forward.lse.crows(),
            .dout = dout.crows(),
            .dq = dq.rows(),
            .dk = dk.rows(),
            .dv = dv.rows(),
            .dpast_k = dpast_k.rows(),
            .dpast_v = dpast_v.rows(),
            .dsink_k = dsink_k.rows(),
            .dsink_v = dsink_v.rows(),
            .dq_sink = problem.test_case.q_sink ? dq_sink.rows() : Rows<float>()};
  }

  RowBuffer dq, dk, dv, dpast_k, dpast_v, dsink_k, dsink_v, dq_sink;
};

void RunBackward(const WindowAttentionArgs<float>& args, const WindowAttentionGrads<float>& grads) {
  GuardedBuffer scratch(WindowAttentionBackwardScratchFloats(args.shape));
  const int64_t items = args.shape.B * args.shape.G;
  for (const auto& [begin, end] : {std::pair{int64_t{0}, items / 2}, std::pair{items / 2, items}}) {
    scratch.Poison();
    ASSERT_TRUE(WindowAttentionBackward(args, grads, begin, end, scratch.data()).ok());
  }
  EXPECT_TRUE(scratch.Intact());
}

// The largest sum_t p(t, i) over keys i: with dout = 1 it is what dv holds.
double MaxColumnSum(const WindowProblem& problem, const WindowAttentionArgs<float>& args, const Outputs& forward) {
  const WindowAttentionShape& n = problem.n;
  RowBuffer ones(n.B, n.H, n.T, n.Dv);
  ones.buffer.Fill(1.0f);
  Grads grads(n);
  EXPECT_TRUE(WindowAttentionBackwardReference(args, grads.Args(problem, forward, ones), 0, n.B * n.G).ok());
  using testing::MaxAbsRows;
  return std::max({MaxAbsRows(grads.dv), MaxAbsRows(grads.dpast_v), MaxAbsRows(grads.dsink_v)});
}

// Magnitudes: |ds(t, i)| <= p(t, i) * 2 |dout| |v|; a query's p sum to 1, a key's to at most the column sum.
void CheckBackward(const WindowCase& c) {
  SCOPED_TRACE(Describe(c.shape));
  const WindowAttentionShape& n = c.shape;
  Rng rng(8, static_cast<uint64_t>(n.T + 31 * n.D));
  const WindowProblem problem(c, rng);
  Outputs forward(n);
  Grads fast(n), ref(n);
  const auto args = problem.Args(forward.out, forward.lse);
  ASSERT_TRUE(WindowAttentionForwardReference(args, 0, n.B * n.G).ok());
  const auto fast_grads = fast.Args(problem, forward, problem.dout);
  const auto ref_grads = ref.Args(problem, forward, problem.dout);
  ASSERT_TRUE(ValidateWindowAttentionBackward(args, fast_grads).ok());
  RunBackward(args, fast_grads);
  ASSERT_TRUE(WindowAttentionBackwardReference(args, ref_grads, 0, n.B * n.G).ok());

  const double ulps = WeightUlps(n, problem.LogitBound()) + 2 * std::sqrt(static_cast<double>(n.Dv));
  const double dout = testing::MaxRowNorm(problem.dout), dout_element = testing::MaxAbsRows(problem.dout);
  const double column = MaxColumnSum(problem, args, forward);
  const double ds = 2 * dout * problem.MaxValue() / std::sqrt(static_cast<double>(n.D));
  const double query = std::max(testing::MaxRowNorm(problem.q), testing::MaxRowNorm(problem.q_sink));
  ExpectRowsNear(fast.dq, ref.dq, ds * problem.MaxKey(), ulps, "dq");
  ExpectRowsNear(fast.dk, ref.dk, column * ds * query, ulps, "dk");
  ExpectRowsNear(fast.dv, ref.dv, column * dout_element, ulps, "dv");
  ExpectRowsNear(fast.dpast_k, ref.dpast_k, column * ds * query, ulps, "dpast_k");
  ExpectRowsNear(fast.dpast_v, ref.dpast_v, column * dout_element, ulps, "dpast_v");
  ExpectRowsNear(fast.dsink_k, ref.dsink_k, column * ds * query, ulps, "dsink_k");
  ExpectRowsNear(fast.dsink_v, ref.dsink_v, column * dout_element, ulps, "dsink_v");
  if (c.q_sink) ExpectRowsNear(fast.dq_sink, ref.dq_sink, ds * problem.MaxKey(), ulps, "dq_sink");
}

TEST(WindowAttentionTest, BackwardMatchesReference) {
  const std::string best = testing::BestTarget();
  ForEachTarget([&](const std::string& target) {
    for (const WindowCase& c : OddCases()) CheckBackward(c);
    for (const WindowCase& c : RandomCases(target == best ? 30 : 8, 120, 4)) CheckBackward(c);
  });
}

TEST(WindowAttentionTest, BackwardLargeBlock) {
  CheckBackward({.shape = {.H = 4, .G = 2, .T = 500, .D = 64, .Dv = 64, .W = 128, .P = 128, .S = 4, .position = 700},
                 .capacity = 200,
                 .start = 150});
}

TEST(WindowAttentionTest, BackwardSkipsWhatIsNotAskedFor) {
  const WindowCase c{.shape = {.H = 2, .T = 40, .D = 16, .Dv = 16, .W = 9, .P = 20, .S = 3, .position = 50},
                     .capacity = 20};
  ForEachTarget([&](const std::string&) {
    Rng rng(9);
    const WindowProblem problem(c, rng);
    Outputs forward(c.shape);
    Grads all(c.shape), some(c.shape);
    const auto args = problem.Args(forward.out, forward.lse);
    RunForward(args);
    RunBackward(args, all.Args(problem, forward, problem.dout));
    auto grads = some.Args(problem, forward, problem.dout);
    grads.dpast_k = grads.dpast_v = grads.dsink_k = grads.dsink_v = {};
    RunBackward(args, grads);
    ExpectRowsNear(some.dq, all.dq, 0, 0, "dq");
    ExpectRowsNear(some.dk, all.dk, 0, 0, "dk");
    ExpectRowsNear(some.dv, all.dv, 0, 0, "dv");
  });
}

// A double copy of a problem, for finite differences of loss = sum w . out through the reference.
struct DoubleProblem {
  explicit DoubleProblem(const WindowProblem& p) : n(p.n), test_case(p.test_case) {
    for (const RowBuffer* from : {&p.q, &p.k, &p.v, &p.past_k, &p.past_v, &p.sink_k, &p.sink_v, &p.q_sink, &p.dout}) {
      inputs.emplace_back(from->buffer.data(), from->buffer.data() + from->buffer.size());
      views.push_back({.batch = from->crows().batch, .head = from->crows().head, .token = from->crows().token});
    }
    out.resize(static_cast<size_t>(n.B * n.H * n.T * n.Dv));
    lse.resize(static_cast<size_t>(n.B * n.H * n.T));
  }

  Rows<const double> In(size_t i) const {
    Rows<const double> view = views[i];
    view.data = inputs[i].data();
    return view;
  }
  Rows<double> Contiguous(std::vector<double>& data, int64_t heads, int64_t tokens, int64_t width) const {
    return {.data = data.data(), .batch = heads * tokens * width, .head = tokens * width, .token = width};
  }
  static Rows<const double> ReadOnly(const Rows<double>& x) {
    return {.data = x.data, .batch = x.batch, .head = x.head, .token = x.token};
  }
  WindowAttentionArgs<double> Args() {
    return {.shape = n,
            .q = In(0),
            .k = In(1),
            .v = In(2),
            .past = {.k = In(3), .v = In(4), .capacity = test_case.capacity, .start = test_case.start},
            .sink_k = In(5),
            .sink_v = In(6),
            .q_sink = test_case.q_sink ? In(7) : Rows<const double>(),
            .scale = 0.7,
            .out = Contiguous(out, n.H, n.T, n.Dv),
            .lse = Contiguous(lse, n.H, n.T, 1)};
  }
  double Loss() {
    const auto args = Args();
    EXPECT_TRUE(WindowAttentionForwardReference(args, 0, n.B * n.G).ok());
    double loss = 0;
    for (int64_t b = 0; b < n.B; ++b) {
      for (int64_t h = 0; h < n.H; ++h) {
        for (int64_t t = 0; t < n.T; ++t) {
          for (int64_t d = 0; d < n.Dv; ++d) loss += In(8).At(b, h, t)[d] * args.out.At(b, h, t)[d];
        }
      }
    }
    return loss;
  }

  WindowAttentionShape n;
  WindowCase test_case;
  std::vector<std::vector<double>> inputs;
  std::vector<Rows<const double>> views;
  std::vector<double> out, lse;
};

// Central differences in double: truncation about h^2 = 1e-10 and rounding about 1e-16 / h = 1e-11, times O(10)
// derivatives.
void CheckDifferences(DoubleProblem& problem, size_t input, const Rows<double>& grad, int64_t heads, int64_t tokens,
                      int64_t width, const std::function<int64_t(int64_t)>& slot, const char* what) {
  constexpr double kStep = 1e-5;
  for (int64_t b = 0; b < problem.n.B; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t d = 0; d < width; ++d) {
          double& x = problem.inputs[input][static_cast<size_t>(problem.In(input).At(b, h, slot(t)) + d -
                                                                problem.inputs[input].data())];
          const double saved = x;
          x = saved + kStep;
          const double above = problem.Loss();
          x = saved - kStep;
          const double below = problem.Loss();
          x = saved;
          ASSERT_NEAR(grad.At(b, h, t)[d], (above - below) / (2 * kStep), 1e-8)
              << what << " at batch " << b << ", head " << h << ", token " << t << ", element " << d;
        }
      }
    }
  }
}

void CheckGradients(const WindowCase& c) {
  SCOPED_TRACE(Describe(c.shape));
  Rng rng(10);
  const WindowProblem single(c, rng);
  DoubleProblem problem(single);
  const WindowAttentionShape& n = c.shape;
  (void)problem.Loss();
  std::deque<std::vector<double>> data;
  const auto make = [&](int64_t heads, int64_t tokens, int64_t width) {
    data.emplace_back(static_cast<size_t>(n.B * heads * tokens * width), std::nan(""));
    return problem.Contiguous(data.back(), heads, tokens, width);
  };
  const auto args = problem.Args();
  const WindowAttentionGrads<double> grads{.out = problem.ReadOnly(args.out),
                                           .lse = problem.ReadOnly(args.lse),
                                           .dout = problem.In(8),
                                           .dq = make(n.H, n.T, n.D),
                                           .dk = make(n.G, n.T, n.D),
                                           .dv = make(n.G, n.T, n.Dv),
                                           .dpast_k = make(n.G, n.P, n.D),
                                           .dpast_v = make(n.G, n.P, n.Dv),
                                           .dsink_k = make(n.G, n.S, n.D),
                                           .dsink_v = make(n.G, n.S, n.Dv),
                                           .dq_sink = c.q_sink ? make(n.H, n.T, n.D) : Rows<double>()};
  ASSERT_TRUE(WindowAttentionBackwardReference(args, grads, 0, n.B * n.G).ok());

  const auto same = [](int64_t t) { return t; };
  const auto ring = [&](int64_t t) { return (c.start + t) % c.capacity; };
  CheckDifferences(problem, 0, grads.dq, n.H, n.T, n.D, same, "dq");
  CheckDifferences(problem, 1, grads.dk, n.G, n.T, n.D, same, "dk");
  CheckDifferences(problem, 2, grads.dv, n.G, n.T, n.Dv, same, "dv");
  CheckDifferences(problem, 3, grads.dpast_k, n.G, n.P, n.D, ring, "dpast_k");
  CheckDifferences(problem, 4, grads.dpast_v, n.G, n.P, n.Dv, ring, "dpast_v");
  CheckDifferences(problem, 5, grads.dsink_k, n.G, n.S, n.D, same, "dsink_k");
  CheckDifferences(problem, 6, grads.dsink_v, n.G, n.S, n.Dv, same, "dsink_v");
  if (c.q_sink) CheckDifferences(problem, 7, grads.dq_sink, n.H, n.T, n.D, same, "dq_sink");
}

TEST(WindowAttentionTest, ReferenceGradientsMatchFiniteDifferences) {
  WindowCase c{.shape = {.B = 2, .H = 4, .G = 2, .T = 5, .D = 3, .Dv = 4, .W = 3, .P = 4, .S = 2, .position = 4},
               .capacity = 5,
               .start = 3};
  CheckGradients(c);
  c.q_sink = true;
  CheckGradients(c);
  c.shape.W = kUnboundedWindow;
  CheckGradients(c);
}

// Logits of about 1e6: one key takes all the weight, and nothing overflows.
TEST(WindowAttentionTest, HugeKeysStayFinite) {
  const WindowCase c{.shape = {.H = 2, .T = 90, .D = 64, .Dv = 64, .W = 40, .P = 10, .S = 3, .position = 60},
                     .capacity = 10,
                     .key_scale = 1e3};
  ForEachTarget([&](const std::string&) {
    Rng rng(11);
    const WindowProblem problem(c, rng);
    Outputs forward(c.shape);
    Grads grads(c.shape);
    const auto args = problem.Args(forward.out, forward.lse);
    RunForward(args);
    RunBackward(args, grads.Args(problem, forward, problem.dout));
    for (const RowBuffer* x : {&forward.out, &forward.lse, &grads.dq, &grads.dk, &grads.dv, &grads.dpast_k,
                               &grads.dpast_v, &grads.dsink_k, &grads.dsink_v}) {
      for (int64_t h = 0; h < x->H; ++h) {
        for (int64_t t = 0; t < x->T; ++t) {
          for (int64_t d = 0; d < x->D; ++d) ASSERT_TRUE(std::isfinite(x->Row(0, h, t)[d]));
        }
      }
    }
    // A convex combination of values.
    EXPECT_LE(testing::MaxRowNorm(forward.out), problem.MaxValue() * 1.0001);
  });
}

// Keys of 0: the output is the mean of the visible values.
TEST(WindowAttentionTest, ZeroKeysGiveTheMean) {
  const WindowCase c{.shape = {.T = 100, .D = 16, .Dv = 16, .W = 33}, .key_scale = 0};
  ForEachTarget([&](const std::string&) {
    Rng rng(12);
    const WindowProblem problem(c, rng);
    Outputs forward(c.shape), mean(c.shape);
    RunForward(problem.Args(forward.out, forward.lse));
    for (int64_t t = 0; t < c.shape.T; ++t) {
      const int64_t keys = std::min(t + 1, c.shape.W);
      for (int64_t d = 0; d < c.shape.Dv; ++d) {
        double sum = 0;
        for (int64_t i = t - keys + 1; i <= t; ++i) sum += problem.v.Row(0, 0, i)[d];
        mean.out.Row(0, 0, t)[d] = static_cast<float>(sum / static_cast<double>(keys));
      }
      EXPECT_NEAR(*forward.lse.Row(0, 0, t), std::log(static_cast<double>(keys)), 1e-6);
    }
    ExpectRowsNear(forward.out, mean.out, problem.MaxValueElement(), WeightUlps(c.shape, 0), "out");
  });
}

TEST(WindowAttentionTest, ValidateNamesTheMistake) {
  const WindowCase good{.shape = {.H = 4, .G = 2, .T = 3, .D = 8, .Dv = 8, .W = 2, .P = 2, .S = 2, .position = 5},
                        .capacity = 4,
                        .start = 3};
  Rng rng(13);
  const WindowProblem problem(good, rng);
  Outputs outputs(good.shape);
  const auto args = problem.Args(outputs.out, outputs.lse);
  ASSERT_TRUE(ValidateWindowAttention(args).ok());
  const auto expect_bad = [&](const char* part, const std::function<void(WindowAttentionArgs<float>&)>& spoil) {
    auto bad = args;
    spoil(bad);
    const Status status = ValidateWindowAttention(bad);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  expect_bad("multiple of G", [](auto& a) { a.shape.H = 3; });
  expect_bad("multiple of G", [](auto& a) { a.shape.G = 0; });
  expect_bad("T must be", [](auto& a) { a.shape.T = -1; });
  expect_bad("D, Dv >= 1", [](auto& a) { a.shape.Dv = 0; });
  expect_bad("W = 0", [](auto& a) { a.shape.W = 0; });
  expect_bad("P = 6", [](auto& a) { a.shape.P = 6; });
  expect_bad("capacity 1", [](auto& a) { a.past.capacity = 1; });
  expect_bad("from slot 4", [](auto& a) { a.past.start = 4; });
  expect_bad("no keys or values", [](auto& a) { a.past.v = {}; });
  expect_bad("sink_k or sink_v is missing", [](auto& a) { a.sink_k = {}; });
  expect_bad("q, k or v", [](auto& a) { a.k = {}; });
  expect_bad("out is missing", [](auto& a) { a.out = {}; });
  expect_bad("scale", [](auto& a) { a.scale = std::nan(""); });
  expect_bad("too large", [](auto& a) { a.shape.T = int64_t{1} << 60; });

  GuardedBuffer scratch(WindowAttentionScratchFloats(args.shape));
  EXPECT_EQ(WindowAttentionForward(args, 0, 3, scratch.data()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(WindowAttentionForward(args, -1, 2, scratch.data()).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tensorcache
