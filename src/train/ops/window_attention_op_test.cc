// Fused and composite window attention against each other and against the kernel's reference, with all gradients.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/window_attention/window_attention_ref.h"
#include "tensorcache/kernels/window_attention.h"
#include "train/ops/fields_testing.h"
#include "train/ops/gradcheck_testing.h"
#include "train/ops/items.h"
#include "train/ops/op_testing.h"
#include "train/ops/window_attention.h"

namespace tensorcache::train {
namespace {

struct Case {
  WindowAttentionShape shape;  // W = 0: unbounded
  bool q_sink = false;
  std::optional<double> scale{};
};

std::string Describe(const Case& c) {
  const WindowAttentionShape& n = c.shape;
  std::string text = c.q_sink ? "q_sink" : "";
  const auto add = [&](const char* name, int64_t value) { text += std::string(name) + std::to_string(value); };
  add(" B=", n.B), add(" H=", n.H), add(" G=", n.G), add(" T=", n.T), add(" D=", n.D), add(" Dv=", n.Dv);
  add(" W=", n.W), add(" P=", n.P), add(" S=", n.S), add(" position=", n.position);
  return text;
}

using Field = InputField<WindowAttentionInputs>;
constexpr InputFields<WindowAttentionInputs, 8> kFields{{{"q", &WindowAttentionInputs::q},
                                                         {"k", &WindowAttentionInputs::k},
                                                         {"v", &WindowAttentionInputs::v},
                                                         {"past_k", &WindowAttentionInputs::past_k},
                                                         {"past_v", &WindowAttentionInputs::past_v},
                                                         {"sink_k", &WindowAttentionInputs::sink_k},
                                                         {"sink_v", &WindowAttentionInputs::sink_v},
                                                         {"q_sink", &WindowAttentionInputs::q_sink}}};
enum { kQ, kK, kV, kPastK, kPastV, kSinkK, kSinkV, kQSink };

WindowAttentionInputs RandomInputs(const Case& c) {
  const WindowAttentionShape& n = c.shape;
  WindowAttentionInputs in{.q = Normal({n.B, n.T, n.H, n.D}),
                           .k = Normal({n.B, n.T, n.G, n.D}),
                           .v = Normal({n.B, n.T, n.G, n.Dv}),
                           .window = n.W,
                           .position = n.position,
                           .scale = c.scale};
  if (n.P > 0) {
    in.past_k = Normal({n.B, n.G, n.P, n.D});
    in.past_v = Normal({n.B, n.G, n.P, n.Dv});
  }
  if (n.S > 0) {
    in.sink_k = Normal({n.B, n.G, n.S, n.D});
    in.sink_v = Normal({n.B, n.G, n.S, n.Dv});
  }
  if (c.q_sink) in.q_sink = Normal({n.B, n.T, n.H, n.D});
  return in;
}

WindowAttentionInputs Leaves(const WindowAttentionInputs& in, at::ScalarType dtype) {
  return LeavesOf(kFields, in, dtype);
}

struct AttentionRun {
  Tensor out;
  std::array<Tensor, kFields.size()> gradients;  // undefined where the input is
};

// Gradients of <out, d_out>; what autograd leaves out is zero.
AttentionRun RunAttention(const WindowAttentionInputs& in, Backend backend, const Tensor& d_out) {
  const Tensor out = WindowAttention(in, backend);
  return {.out = out.detach(), .gradients = GradientsOf(kFields, in, {out}, {d_out})};
}

double MaxRowNorm(const Tensor& x) { return x.defined() ? MaxAbs(x.detach().to(at::kDouble).norm(2, -1)) : 0; }

// How far results may be off, in units of the dtype's epsilon.
struct Magnitudes {
  double out;
  std::array<double, kFields.size()> gradients;
};

// A logit is a dot product of D terms and errs by sqrt(D)/2 eps times its bound, which exp makes a relative error of
// the weight, once for the logit and once for the maximum or lse it is taken from; the sum over keys and exp add
// sqrt(keys)/2 and 2. Times 2 for the tails of the random walk. A gradient of a logit is at most 2 |d_out| |v|, with
// sqrt(Dv) roundings, and those of keys and values are sums over the queries that see them.
Magnitudes MagnitudesOf(const Case& c, const WindowAttentionInputs& in, const Tensor& d_out) {
  const WindowAttentionShape& n = c.shape;
  const double scale = c.scale.value_or(1 / std::sqrt(static_cast<double>(n.D)));
  const double query = std::max(MaxRowNorm(in.q), MaxRowNorm(in.q_sink));
  const double key = std::max({MaxRowNorm(in.k), MaxRowNorm(in.past_k), MaxRowNorm(in.sink_k)});
  const double value = std::max({MaxRowNorm(in.v), MaxRowNorm(in.past_v), MaxRowNorm(in.sink_v)});
  const double logit = scale * query * key;
  const double keys = static_cast<double>(n.S + (n.W == 0 ? n.P + n.T : std::min(n.W, n.P + n.T)));
  const double weight = 2 * ((std::sqrt(static_cast<double>(n.D)) + 1) * logit + std::sqrt(keys) / 2 + 2);
  const double roundings = weight + 2 * std::sqrt(static_cast<double>(n.Dv));
  const double column = std::sqrt(static_cast<double>(n.T * n.H / n.G));  // queries that see a key
  const double d_logit = scale * 2 * MaxRowNorm(d_out) * value;
  const double dq = d_logit * key, dk = column * d_logit * query, dv = column * MaxAbs(d_out);
  Magnitudes m{.out = weight * value, .gradients = {dq, dk, dv, dk, dv, dk, dv, dq}};
  for (double& x : m.gradients) x *= roundings;
  return m;
}

// `eps` is that of the less precise of the two. Names the gradients that could be told from zero in `seen`.
void ExpectSame(const AttentionRun& actual, const AttentionRun& expected, const Magnitudes& m, double eps,
                std::set<std::string>* seen) {
  ExpectWithin("out", actual.out, expected.out, eps * m.out, seen);
  ExpectGradientsWithin(kFields, actual.gradients, expected.gradients, m.gradients, eps, seen);
}

std::vector<Case> Cases() {
  return {
      {{.B = 1, .H = 1, .G = 1, .T = 1, .D = 3, .Dv = 5, .W = 1}},
      {{.B = 2, .H = 2, .G = 1, .T = 1, .D = 4, .Dv = 4, .W = 6, .P = 5, .position = 9}},
      {{.B = 2, .H = 4, .G = 2, .T = 7, .D = 5, .Dv = 3, .W = 12}},                           // T < W
      {{.B = 1, .H = 2, .G = 2, .T = 9, .D = 4, .Dv = 6, .W = 1, .P = 3, .position = 3}},     // only itself
      {{.B = 2, .H = 3, .G = 3, .T = 40, .D = 8, .Dv = 8, .W = 12, .P = 5, .position = 5}},   // part of a past
      {{.B = 1, .H = 2, .G = 1, .T = 20, .D = 8, .Dv = 7, .W = 4, .P = 11, .position = 30}},  // more than W - 1
      {{.B = 1, .H = 6, .G = 2, .T = 33, .D = 7, .Dv = 9, .W = 0, .P = 6, .position = 8}},    // unbounded
      {{.B = 2, .H = 2, .G = 2, .T = 150, .D = 16, .Dv = 16, .W = 30, .P = 29, .position = 1000}, false, 0.1},
      {{.B = 2, .H = 4, .G = 2, .T = 21, .D = 6, .Dv = 5, .W = 5, .P = 4, .S = 3, .position = 50}},
      {{.B = 1, .H = 4, .G = 1, .T = 90, .D = 6, .Dv = 5, .W = 7, .S = 4}, true},  // sinks come in
      {{.B = 1, .H = 2, .G = 2, .T = 70, .D = 9, .Dv = 4, .W = 8, .P = 3, .S = 4, .position = 5}, true, 0.7},
      {{.B = 1, .H = 2, .G = 2, .T = 6, .D = 4, .Dv = 4, .W = 8, .S = 2}, true},  // no sink is seen
      {{.B = 1, .H = 2, .G = 2, .T = 6, .D = 4, .Dv = 4, .W = 2}, true},          // none is there
  };
}

class WindowAttentionOp : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);  // many tiny operations
    at::manual_seed(30);
  }
};

TEST_F(WindowAttentionOp, FusedAndCompositeAgreeWithAllGradients) {
  std::set<std::string> seen;
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Describe(c));
    const WindowAttentionInputs in = RandomInputs(c);
    const Tensor d_out = Normal({c.shape.B, c.shape.T, c.shape.H, c.shape.Dv});
    const AttentionRun expected = RunAttention(Leaves(in, at::kDouble), Backend::kComposite, d_out);
    const Magnitudes m = MagnitudesOf(c, in, d_out);
    const double eps = std::numeric_limits<float>::epsilon();
    {
      SCOPED_TRACE("fused");
      const PoisonEmpty poison;
      const AttentionRun fused = RunAttention(Leaves(in, at::kFloat), Backend::kFused, d_out);
      EXPECT_TRUE(fused.out.is_contiguous());
      ExpectSame(fused, expected, m, eps, &seen);
    }
    SCOPED_TRACE("composite");
    ExpectSame(RunAttention(Leaves(in, at::kFloat), Backend::kComposite, d_out), expected, m, eps, nullptr);
  }
  ExpectAllSeen(kFields, seen);
}

// The kernel's reference in double, on tensors.
AttentionRun RunReference(const Case& c, const WindowAttentionInputs& in, const Tensor& d_out) {
  WindowAttentionShape n = c.shape;
  if (n.W == 0) n.W = kUnboundedWindow;
  const auto empty = [](at::IntArrayRef sizes) { return at::empty(sizes, at::kDouble); };
  AttentionRun run{.out = empty({n.B, n.T, n.H, n.Dv})};
  const Tensor lse = empty({n.B, n.H, n.T});
  for (size_t i = 0; i < kFields.size(); ++i) {
    const Tensor& x = in.*kFields[i].tensor;
    if (x.defined()) run.gradients[i] = at::empty_like(x);
  }
  const WindowAttentionArgs<double> args{.shape = n,
                                         .q = RowsOf<const double>(in.q, kTokenMajor),
                                         .k = RowsOf<const double>(in.k, kTokenMajor),
                                         .v = RowsOf<const double>(in.v, kTokenMajor),
                                         .past = {.k = RowsOf<const double>(in.past_k, kHeadMajor),
                                                  .v = RowsOf<const double>(in.past_v, kHeadMajor),
                                                  .capacity = n.P},
                                         .sink_k = RowsOf<const double>(in.sink_k, kHeadMajor),
                                         .sink_v = RowsOf<const double>(in.sink_v, kHeadMajor),
                                         .q_sink = RowsOf<const double>(in.q_sink, kTokenMajor),
                                         .scale = in.scale,
                                         .out = RowsOf<double>(run.out, kTokenMajor),
                                         .lse = RowsOf<double>(lse, kHeadMajor)};
  EXPECT_TRUE(WindowAttentionForwardReference(args, 0, n.B * n.G).ok());
  const auto gradient = [&](size_t field, const RowDims& dims) { return RowsOf<double>(run.gradients[field], dims); };
  const WindowAttentionGrads<double> grads{.out = RowsOf<const double>(run.out, kTokenMajor),
                                           .lse = RowsOf<const double>(lse, kHeadMajor),
                                           .dout = RowsOf<const double>(d_out, kTokenMajor),
                                           .dq = gradient(kQ, kTokenMajor),
                                           .dk = gradient(kK, kTokenMajor),
                                           .dv = gradient(kV, kTokenMajor),
                                           .dpast_k = gradient(kPastK, kHeadMajor),
                                           .dpast_v = gradient(kPastV, kHeadMajor),
                                           .dsink_k = gradient(kSinkK, kHeadMajor),
                                           .dsink_v = gradient(kSinkV, kHeadMajor),
                                           .dq_sink = gradient(kQSink, kTokenMajor)};
  EXPECT_TRUE(WindowAttentionBackwardReference(args, grads, 0, n.B * n.G).ok());
  return run;
}

TEST_F(WindowAttentionOp, CompositeIsTheReferenceInDouble) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Describe(c));
    const WindowAttentionInputs in = RandomInputs(c);
    const Tensor d_out = Normal({c.shape.B, c.shape.T, c.shape.H, c.shape.Dv});
    ExpectSame(RunAttention(Leaves(in, at::kDouble), Backend::kAuto, d_out), RunReference(c, in, d_out),
               MagnitudesOf(c, in, d_out), std::numeric_limits<double>::epsilon(), nullptr);
  }
}

TEST_F(WindowAttentionOp, CompositeGradientsAreFiniteDifferences) {
  const auto check = [](const Case& c) {
    SCOPED_TRACE(Describe(c));
    const WindowAttentionInputs in = RandomInputs(c);
    std::vector<Tensor> tensors;
    for (const Field& field : kFields) tensors.push_back(in.*field.tensor);
    EXPECT_TRUE(Gradcheck(
        [&](const std::vector<Tensor>& x) {
          WindowAttentionInputs leaves = in;
          for (size_t i = 0; i < kFields.size(); ++i) leaves.*kFields[i].tensor = x[i];
          return std::vector<Tensor>{WindowAttention(leaves)};
        },
        tensors));
  };
  check({{.B = 1, .H = 2, .G = 1, .T = 4, .D = 2, .Dv = 3, .W = 3, .P = 2, .S = 2, .position = 4}, true});
  check({{.B = 1, .H = 1, .G = 1, .T = 4, .D = 2, .Dv = 2, .W = 3, .P = 2, .S = 1, .position = 7}});
  check({{.B = 2, .H = 2, .G = 2, .T = 3, .D = 2, .Dv = 2, .W = 0, .P = 1, .position = 1}, false, 0.3});
}

// q, k, v as slices of one projection (rows contiguous), and as tensors whose rows are not.
TEST_F(WindowAttentionOp, StridedInputsGiveTheSame) {
  at::set_num_threads(2);
  const int64_t B = 2, T = 41, H = 4, G = 2, D = 8;
  const Case c{{.B = B, .H = H, .G = G, .T = T, .D = D, .Dv = D, .W = 6, .P = 3, .S = 2, .position = 9}, true};
  const WindowAttentionInputs in = RandomInputs(c);
  const Tensor d_out = Normal({B, T, H, D});
  const AttentionRun expected = RunAttention(Leaves(in, at::kFloat), Backend::kFused, d_out);

  const Tensor packed = at::cat({in.q, in.k, in.v}, 2).to(at::kFloat).requires_grad_(true);
  WindowAttentionInputs slices = Leaves(in, at::kFloat);
  slices.q = packed.narrow(2, 0, H);
  slices.k = packed.narrow(2, H, G);
  slices.v = packed.narrow(2, H + G, G);
  const Tensor out = WindowAttention(slices, Backend::kFused);
  EXPECT_TRUE(out.equal(expected.out));
  out.backward(d_out.to(at::kFloat));
  EXPECT_TRUE(
      packed.grad().equal(at::cat({expected.gradients[kQ], expected.gradients[kK], expected.gradients[kV]}, 2)));

  WindowAttentionInputs turned = Leaves(in, at::kFloat);
  for (const Field& field : kFields) {
    Tensor& x = turned.*field.tensor;
    x = x.detach().transpose(-1, -2).contiguous().transpose(-1, -2).requires_grad_(true);
  }
  // The gradient of the output too, and broadcast.
  const AttentionRun strided =
      RunAttention(turned, Backend::kFused, d_out.transpose(1, 3).contiguous().transpose(1, 3));
  EXPECT_TRUE(strided.out.equal(expected.out));
  const AttentionRun broadcast = RunAttention(turned, Backend::kFused, at::ones({}, at::kFloat).expand({B, T, H, D}));
  const AttentionRun filled = RunAttention(turned, Backend::kFused, at::ones({B, T, H, D}));
  for (size_t i = 0; i < kFields.size(); ++i) {
    EXPECT_TRUE(strided.gradients[i].equal(expected.gradients[i])) << kFields[i].name;
    EXPECT_TRUE(broadcast.gradients[i].equal(filled.gradients[i])) << kFields[i].name;
  }
}

// Each input alone: its gradient is what it is among all others.
TEST_F(WindowAttentionOp, ComputesTheGradientsThatAreAskedFor) {
  const Case c{{.B = 2, .H = 2, .G = 1, .T = 40, .D = 6, .Dv = 5, .W = 5, .P = 3, .S = 2, .position = 10}, true};
  const WindowAttentionInputs in = RandomInputs(c);
  const Tensor d_out = Normal({2, 40, 2, 5});
  const AttentionRun all = RunAttention(Leaves(in, at::kFloat), Backend::kFused, d_out);
  for (size_t i = 0; i < kFields.size(); ++i) {
    SCOPED_TRACE(kFields[i].name);
    WindowAttentionInputs alone = Leaves(in, at::kFloat);
    for (size_t j = 0; j < kFields.size(); ++j) {
      if (j != i) alone.*kFields[j].tensor = (alone.*kFields[j].tensor).detach();
    }
    const auto gradient = torch::autograd::grad({WindowAttention(alone, Backend::kFused)}, {alone.*kFields[i].tensor},
                                                {d_out.to(at::kFloat)});
    EXPECT_TRUE(gradient[0].equal(all.gradients[i]));
  }
}

TEST_F(WindowAttentionOp, WithoutGradientsNothingIsKept) {
  const Case c{{.B = 1, .H = 2, .G = 2, .T = 40, .D = 8, .Dv = 8, .W = 4, .P = 3, .position = 3}};
  const WindowAttentionInputs in = Leaves(RandomInputs(c), at::kFloat);
  const auto owners = in.k.use_count();
  const Tensor kept = WindowAttention(in, Backend::kFused);
  EXPECT_TRUE(kept.requires_grad());
  const auto with_graph = in.k.use_count();
  EXPECT_GT(with_graph, owners);
  {
    const at::NoGradGuard no_grad;
    const Tensor out = WindowAttention(in, Backend::kFused);
    EXPECT_FALSE(out.requires_grad());
    EXPECT_EQ(in.k.use_count(), with_graph);
    EXPECT_TRUE(out.equal(kept));
  }
  WindowAttentionInputs constant = in;
  for (const Field& field : kFields) {
    if (Tensor& x = constant.*field.tensor; x.defined()) x = x.detach();
  }
  EXPECT_FALSE(WindowAttention(constant, Backend::kFused).requires_grad());
  EXPECT_EQ(constant.k.use_count(), 1);
}

// Sinks that no query sees yet need not hold anything.
TEST_F(WindowAttentionOp, UnseenSinksMayHoldAnything) {
  const Case c{{.B = 1, .H = 2, .G = 1, .T = 6, .D = 4, .Dv = 4, .W = 5, .S = 4}};
  const WindowAttentionInputs in = RandomInputs(c);
  WindowAttentionInputs poisoned = in;  // the last query, at position 5, sees sink 0
  for (Tensor* x : {&poisoned.sink_k, &poisoned.sink_v}) {
    *x = x->clone();
    x->narrow(2, 1, 3).fill_(std::numeric_limits<double>::quiet_NaN());
  }
  EXPECT_TRUE(WindowAttention(in).equal(WindowAttention(poisoned)));
  EXPECT_TRUE(WindowAttention(Leaves(in, at::kFloat)).equal(WindowAttention(Leaves(poisoned, at::kFloat))));
}

// Logits, weights and outputs are rounded to bfloat16's 8 bits, the softmax is not: logits err by logit/256, which exp
// makes a relative error of the weights, and each of scaled query, weight and output adds 1/256.
TEST_F(WindowAttentionOp, LowPrecision) {
  const Case c{{.B = 2, .H = 2, .G = 2, .T = 70, .D = 8, .Dv = 9, .W = 20, .P = 5, .position = 5}};
  WindowAttentionInputs in = RandomInputs(c);
  WindowAttentionInputs low = in;
  for (const Field& field : kFields) {
    if (!(in.*field.tensor).defined()) continue;
    low.*field.tensor = (in.*field.tensor).to(at::kBFloat16);
    in.*field.tensor = (low.*field.tensor).to(at::kDouble);
  }
  const Tensor out = WindowAttention(low), expected = WindowAttention(in);
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  const double logit = MaxRowNorm(in.q) * std::max(MaxRowNorm(in.k), MaxRowNorm(in.past_k)) / std::sqrt(8.0);
  const double value = std::max(MaxAbs(in.v), MaxAbs(in.past_v));
  EXPECT_LE(MaxAbs(out.to(at::kDouble) - expected), (3 + logit) / 256 * value);
}

TEST_F(WindowAttentionOp, EmptyBlock) {
  const Case c{{.B = 2, .H = 2, .G = 1, .T = 0, .D = 3, .Dv = 4, .W = 3, .P = 2, .position = 2}};
  for (const Backend backend : {Backend::kFused, Backend::kComposite}) {
    const Tensor out = WindowAttention(Leaves(RandomInputs(c), at::kFloat), backend);
    EXPECT_EQ(out.sizes(), at::IntArrayRef({2, 0, 2, 4}));
  }
}

TEST_F(WindowAttentionOp, RefusesWhatItCannotDo) {
  const Case c{{.B = 1, .H = 2, .G = 2, .T = 4, .D = 3, .Dv = 3, .W = 3, .P = 2, .S = 1, .position = 5}};
  const WindowAttentionInputs in = Leaves(RandomInputs(c), at::kFloat);
  const auto with = [&](auto change) {
    WindowAttentionInputs changed = in;
    change(changed);
    return changed;
  };
  for (const Backend backend : {Backend::kFused, Backend::kComposite}) {
    EXPECT_THROW(WindowAttention(with([](auto& x) { x.k = x.k.narrow(1, 0, 3); }), backend), c10::Error);
    EXPECT_THROW(WindowAttention(with([](auto& x) { x.window = -1; }), backend), c10::Error);
    EXPECT_THROW(WindowAttention(with([](auto& x) { x.position = 1; }), backend), c10::Error);
    EXPECT_THROW(WindowAttention(with([](auto& x) { x.past_v = Tensor(); }), backend), c10::Error);
    EXPECT_THROW(WindowAttention(with([](auto& x) { x.q_sink = x.q.narrow(1, 0, 2); }), backend), c10::Error);
  }
  const Tensor sum = WindowAttention(in, Backend::kFused).sum();
  EXPECT_THROW(torch::autograd::grad({sum}, {in.q}, {}, /*retain_graph=*/true, /*create_graph=*/true), c10::Error);
}

}  // namespace
}  // namespace tensorcache::train
