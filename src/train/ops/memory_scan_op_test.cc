// Fused and composite memory scan against each other and against the kernel's reference, with all gradients.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "kernels/memory_scan/memory_scan_ref.h"
#include "kernels/memory_scan/memory_scan_testing.h"
#include "train/ops/fields_testing.h"
#include "train/ops/gradcheck_testing.h"
#include "train/ops/items.h"
#include "train/ops/memory_scan.h"
#include "train/ops/op_testing.h"

namespace tensorcache::train {
namespace {

struct Case {
  MemoryScanShape shape;
  bool decay_per_token = true, strength_per_token = true;
  bool initial = true;
};

std::string Describe(const Case& c) {
  const MemoryScanShape& s = c.shape;
  std::string text = testing::RuleName(s.rule) + " mode " + std::to_string(static_cast<int>(s.mode)) +
                     (c.decay_per_token ? " decays" : " decay") + (c.strength_per_token ? " strengths" : " strength") +
                     (c.initial ? "" : " zero");
  const auto add = [&](const char* name, int64_t value) { text += std::string(name) + std::to_string(value); };
  add(" B=", s.B), add(" H=", s.H), add(" G=", s.G), add(" T=", s.T), add(" Dk=", s.Dk), add(" Dv=", s.Dv);
  add(" lag=", s.lag), add(" past=", s.past), add(" chunk=", s.chunk);
  return text;
}

using Field = InputField<MemoryScanInputs>;
constexpr InputFields<MemoryScanInputs, 10> kFields{{{"q", &MemoryScanInputs::q},
                                                     {"k", &MemoryScanInputs::k},
                                                     {"v", &MemoryScanInputs::v},
                                                     {"log_decay", &MemoryScanInputs::log_decay},
                                                     {"write_strength", &MemoryScanInputs::write_strength},
                                                     {"past_k", &MemoryScanInputs::past_k},
                                                     {"past_v", &MemoryScanInputs::past_v},
                                                     {"past_log_decay", &MemoryScanInputs::past_log_decay},
                                                     {"past_write_strength", &MemoryScanInputs::past_write_strength},
                                                     {"initial", &MemoryScanInputs::initial}}};
enum { kQ, kK, kV, kLogDecay, kStrength, kPastK, kPastV, kPastLogDecay, kPastStrength, kInitial };

MemoryScanInputs RandomInputs(const Case& c) {
  const MemoryScanShape& s = c.shape;
  const double key_scale = 1 / std::sqrt(static_cast<double>(s.Dk));
  const auto decay = [](at::IntArrayRef sizes) { return (0.9 + 0.1 * at::rand(sizes)).log().to(at::kDouble); };
  const auto strength = [](at::IntArrayRef sizes) { return (0.05 + 0.85 * at::rand(sizes)).to(at::kDouble); };
  MemoryScanInputs in{.q = Normal({s.B, s.T, s.H, s.Dk}),
                      .k = Normal({s.B, s.T, s.G, s.Dk}, key_scale),
                      .v = Normal({s.B, s.T, s.G, s.Dv}),
                      .log_decay = c.decay_per_token ? decay({s.B, s.T, s.G}) : decay({s.G}),
                      .write_strength = c.strength_per_token ? strength({s.B, s.T, s.G}) : strength({s.G}),
                      .lag = s.lag,
                      .rule = s.rule,
                      .mode = s.mode,
                      .chunk = s.chunk};
  if (s.past > 0) {
    in.past_k = Normal({s.B, s.G, s.past, s.Dk}, key_scale);
    in.past_v = Normal({s.B, s.G, s.past, s.Dv});
    if (c.decay_per_token) in.past_log_decay = decay({s.B, s.G, s.past});
    if (c.strength_per_token) in.past_write_strength = strength({s.B, s.G, s.past});
  }
  if (c.initial) in.initial = Normal({s.B, s.G, s.Dk, s.Dv}, 0.3);
  return in;
}

MemoryScanInputs Leaves(const MemoryScanInputs& in, at::ScalarType dtype) { return LeavesOf(kFields, in, dtype); }

struct ScanRun {
  Tensor reads, final_state;
  std::array<Tensor, kFields.size()> gradients;  // undefined where the input is
};

// Gradients of <reads, d_reads> + <final_state, d_final>; what autograd leaves out is zero.
ScanRun RunScan(const MemoryScanInputs& in, Backend backend, const Tensor& d_reads, const Tensor& d_final) {
  const MemoryScanOutputs out = MemoryScan(in, backend);
  return {.reads = out.reads.detach(),
          .final_state = out.final_state.detach(),
          .gradients = GradientsOf(kFields, in, {out.reads, out.final_state}, {d_reads, d_final})};
}

double Norm(const Tensor& x) { return x.defined() ? x.detach().to(at::kDouble).norm().item<double>() : 0; }

// How far results may be off, in units of the dtype's epsilon. A dot product of n terms rounds like a random walk,
// sqrt(n) times the norms of its factors; a gradient is judged by its largest entry plus one term of the sum it is.
// Those of decay and strength are sums over the head's width of q . dq, v . dv and A . dA, and for a constant of a head
// over its tokens.
struct Magnitudes {
  double reads, final_state;
  std::array<double, kFields.size()> gradients;
};

Magnitudes MagnitudesOf(const Case& c, const MemoryScanInputs& in, const ScanRun& run, const Tensor& d_reads,
                        const Tensor& d_final) {
  const MemoryScanShape& s = c.shape;
  const double state = Norm(in.initial) + Norm(run.final_state) + Norm(in.k) + Norm(in.past_k);
  const double q = MaxAbs(in.q), k = MaxAbs(in.k) + MaxAbs(in.past_k), v = MaxAbs(in.v) + MaxAbs(in.past_v);
  const double A = MaxAbs(in.initial) + MaxAbs(run.final_state) + k * v, dr = MaxAbs(d_reads);
  const double dA = MaxAbs(d_final) + MaxAbs(run.gradients[kInitial]) + q * dr;
  const double dq = MaxAbs(run.gradients[kQ]) + A * dr;
  const double dk = MaxAbs(run.gradients[kK]) + MaxAbs(run.gradients[kPastK]) + v * dA;
  const double dv = MaxAbs(run.gradients[kV]) + MaxAbs(run.gradients[kPastV]) + k * dA;
  const double scalar = static_cast<double>(s.Dk + s.Dv) * (q * dq + v * dv + A * dA);
  const double all = std::sqrt(static_cast<double>(s.B * (s.T + s.past)));
  const double walk = std::sqrt(static_cast<double>(s.Dk + s.Dv + s.T));
  Magnitudes m{.reads = walk * state * q,
               .final_state = walk * state,
               .gradients = {dq, dk, dv, scalar * (c.decay_per_token ? 1 : all),
                             scalar * (c.strength_per_token ? 1 : all), dk, dv, scalar, scalar, dA}};
  for (double& x : m.gradients) x *= walk;
  return m;
}

// `eps` is that of the less precise of the two. Names the gradients that could be told from zero in `seen`.
void ExpectSame(const ScanRun& actual, const ScanRun& expected, const Magnitudes& m, double eps,
                std::set<std::string>* seen) {
  ExpectWithin("reads", actual.reads, expected.reads, eps * m.reads, seen);
  ExpectWithin("final_state", actual.final_state, expected.final_state, eps * m.final_state, seen);
  ExpectGradientsWithin(kFields, actual.gradients, expected.gradients, m.gradients, eps, seen);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const WriteRule rule : testing::AllWriteRules()) {
    const bool wedge = rule == WriteRule::kWedge;
    const auto dv = [&](int64_t Dk, int64_t Dv) { return wedge ? Dk : Dv; };
    const auto add = [&](Case c) {
      c.shape.rule = rule;
      cases.push_back(c);
    };
    add({{.B = 1, .H = 1, .G = 1, .T = 1, .Dk = 3, .Dv = dv(3, 5)}});
    add({{.B = 2, .H = 2, .G = 1, .T = 1, .Dk = 5, .Dv = dv(5, 4), .lag = 4, .past = 4}, true, false});
    add({{.B = 1, .H = 2, .G = 2, .T = 3, .Dk = 4, .Dv = dv(4, 1), .lag = 9, .past = 2}});  // nothing is written
    add({{.B = 2, .H = 6, .G = 2, .T = 37, .Dk = 16, .Dv = dv(16, 17), .lag = 5, .past = 3}, false, true});
    add({{.B = 2, .H = 3, .G = 3, .T = 70, .Dk = 7, .Dv = dv(7, 12), .lag = 12, .past = 12}, false, false, false});
    add({{.B = 1, .H = 4, .G = 2, .T = 150, .Dk = 24, .Dv = dv(24, 9), .lag = 1, .past = 1}});
    add({{.B = 2, .H = 2, .G = 2, .T = 129, .Dk = 8, .Dv = dv(8, 10), .lag = 0}, true, true, false});
    for (const ScanMode mode : {ScanMode::kChunkStart, ScanMode::kChunkMean}) {
      if (!testing::HasChunkModes(rule)) break;
      add({{.B = 2, .H = 4, .G = 2, .T = 45, .Dk = 6, .Dv = dv(6, 7), .mode = mode, .chunk = 16}});
      add({{.B = 1, .H = 2, .G = 2, .T = 32, .Dk = 9, .Dv = dv(9, 3), .mode = mode, .chunk = 8}, false, false});
      add({{.B = 2, .H = 1, .G = 1, .T = 5, .Dk = 4, .Dv = dv(4, 6), .mode = mode, .chunk = 7}, true, false, false});
    }
  }
  return cases;
}

class MemoryScanOp : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);  // many tiny operations
    at::manual_seed(20);
  }
};

TEST_F(MemoryScanOp, FusedAndCompositeAgreeWithAllGradients) {
  std::set<std::string> seen;
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Describe(c));
    const MemoryScanInputs in = RandomInputs(c);
    const MemoryScanShape& s = c.shape;
    const Tensor d_reads = Normal({s.B, s.T, s.H, s.Dv}), d_final = Normal({s.B, s.G, s.Dk, s.Dv}, 0.1);
    MemoryScanInputs exact = in;
    if (!c.initial) exact.initial = at::zeros({s.B, s.G, s.Dk, s.Dv}, at::kDouble);
    const ScanRun expected = RunScan(Leaves(exact, at::kDouble), Backend::kComposite, d_reads, d_final);
    const Magnitudes m = MagnitudesOf(c, in, expected, d_reads, d_final);
    const double eps = std::numeric_limits<float>::epsilon();
    {
      SCOPED_TRACE("fused");
      const PoisonEmpty poison;
      const ScanRun fused = RunScan(Leaves(in, at::kFloat), Backend::kFused, d_reads, d_final);
      EXPECT_TRUE(fused.reads.is_contiguous());
      ExpectSame(fused, expected, m, eps, &seen);
    }
    SCOPED_TRACE("composite");
    ExpectSame(RunScan(Leaves(in, at::kFloat), Backend::kComposite, d_reads, d_final), expected, m, eps, nullptr);
  }
  ExpectAllSeen(kFields, seen);
}

// The kernel's reference in double, on tensors.
ScanRun RunReference(const Case& c, const MemoryScanInputs& in, const Tensor& d_reads, const Tensor& d_final) {
  const MemoryScanShape& s = c.shape;
  const auto scalars = [](const Tensor& x) {
    return x.dim() == 1 ? Rows<const double>{.data = x.const_data_ptr<double>(), .head = 1}
                        : RowsOf<const double>(x, kTokenMajor);
  };
  MemoryPast<const double> past;
  past.k = RowsOf<const double>(in.past_k, kHeadMajor);
  past.v = RowsOf<const double>(in.past_v, kHeadMajor);
  past.log_decay = c.decay_per_token ? RowsOf<const double>(in.past_log_decay, kHeadMajor) : scalars(in.log_decay);
  past.write_strength =
      c.strength_per_token ? RowsOf<const double>(in.past_write_strength, kHeadMajor) : scalars(in.write_strength);
  past.capacity = s.past;
  const MemoryWrites<const double> writes{.k = RowsOf<const double>(in.k, kTokenMajor),
                                          .v = RowsOf<const double>(in.v, kTokenMajor),
                                          .log_decay = scalars(in.log_decay),
                                          .write_strength = scalars(in.write_strength)};
  const auto empty = [](at::IntArrayRef sizes) { return at::empty(sizes, at::kDouble); };
  ScanRun run{.reads = empty({s.B, s.T, s.H, s.Dv}), .final_state = empty({s.B, s.G, s.Dk, s.Dv})};
  MemoryScanForwardReference<double>({.shape = s,
                                      .q = RowsOf<const double>(in.q, kTokenMajor),
                                      .writes = writes,
                                      .past = past,
                                      .initial = RowsOf<const double>(in.initial, kHeadMajor),
                                      .reads = RowsOf<double>(run.reads, kTokenMajor),
                                      .final_state = RowsOf<double>(run.final_state, kHeadMajor)});
  const Tensor dq = at::empty_like(in.q), dk = at::empty_like(in.k), dv = at::empty_like(in.v);
  const Tensor dg = empty({s.B, s.T, s.G}), db = empty({s.B, s.T, s.G});
  const Tensor past_dk = empty({s.B, s.G, s.past, s.Dk}), past_dv = empty({s.B, s.G, s.past, s.Dv});
  const Tensor past_dg = empty({s.B, s.G, s.past}), past_db = empty({s.B, s.G, s.past});
  const Tensor d_initial = empty({s.B, s.G, s.Dk, s.Dv});
  MemoryScanBackwardReference<double>(
      {.shape = s,
       .q = RowsOf<const double>(in.q, kTokenMajor),
       .writes = writes,
       .past = past,
       .initial = RowsOf<const double>(in.initial, kHeadMajor),
       .d_reads = RowsOf<const double>(d_reads, kTokenMajor),
       .d_final = RowsOf<const double>(d_final, kHeadMajor),
       .d_q = RowsOf<double>(dq, kTokenMajor),
       .d_writes = {RowsOf<double>(dk, kTokenMajor), RowsOf<double>(dv, kTokenMajor), RowsOf<double>(dg, kTokenMajor),
                    RowsOf<double>(db, kTokenMajor)},
       .d_past = {RowsOf<double>(past_dk, kHeadMajor), RowsOf<double>(past_dv, kHeadMajor),
                  RowsOf<double>(past_dg, kHeadMajor), RowsOf<double>(past_db, kHeadMajor)},
       .d_initial = RowsOf<double>(d_initial, kHeadMajor)});
  const auto per_head = [](const Tensor& block, const Tensor& past) { return block.sum({0, 1}) + past.sum({0, 2}); };
  run.gradients = {dq,
                   dk,
                   dv,
                   c.decay_per_token ? dg : per_head(dg, past_dg),
                   c.strength_per_token ? db : per_head(db, past_db),
                   past_dk,
                   past_dv,
                   past_dg,
                   past_db,
                   d_initial};
  return run;
}

TEST_F(MemoryScanOp, CompositeIsTheReferenceInDouble) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Describe(c));
    const MemoryScanInputs in = RandomInputs(c);
    const MemoryScanShape& s = c.shape;
    const Tensor d_reads = Normal({s.B, s.T, s.H, s.Dv}), d_final = Normal({s.B, s.G, s.Dk, s.Dv}, 0.1);
    const ScanRun expected = RunReference(c, in, d_reads, d_final);
    const ScanRun actual = RunScan(Leaves(in, at::kDouble), Backend::kAuto, d_reads, d_final);
    ExpectSame(actual, expected, MagnitudesOf(c, in, expected, d_reads, d_final),
               std::numeric_limits<double>::epsilon(), nullptr);
  }
}

TEST_F(MemoryScanOp, CompositeGradientsAreFiniteDifferences) {
  const auto check = [](const Case& c) {
    SCOPED_TRACE(Describe(c));
    const MemoryScanInputs in = RandomInputs(c);
    std::vector<Tensor> tensors;
    for (const Field& field : kFields) tensors.push_back(in.*field.tensor);
    EXPECT_TRUE(Gradcheck(
        [&](const std::vector<Tensor>& x) {
          MemoryScanInputs leaves = in;
          for (size_t i = 0; i < kFields.size(); ++i) leaves.*kFields[i].tensor = x[i];
          const MemoryScanOutputs out = MemoryScan(leaves);
          return std::vector<Tensor>{out.reads, out.final_state};
        },
        tensors));
  };
  for (const WriteRule rule : testing::AllWriteRules()) {
    const int64_t Dv = rule == WriteRule::kWedge ? 2 : 3;
    check({{.B = 1, .H = 2, .G = 1, .T = 4, .Dk = 2, .Dv = Dv, .lag = 2, .past = 1, .rule = rule}});
    check({{.B = 1, .H = 1, .G = 1, .T = 3, .Dk = 2, .Dv = Dv, .lag = 1, .past = 1, .rule = rule}, false, false});
    for (const ScanMode mode : {ScanMode::kChunkStart, ScanMode::kChunkMean}) {
      if (!testing::HasChunkModes(rule)) break;
      check({{.B = 1, .H = 2, .G = 1, .T = 5, .Dk = 2, .Dv = Dv, .rule = rule, .mode = mode, .chunk = 2}});
    }
  }
}

// q, k, v as slices of one projection (rows contiguous), and as tensors whose rows are not.
TEST_F(MemoryScanOp, StridedInputsGiveTheSame) {
  at::set_num_threads(2);
  const int64_t B = 2, T = 41, H = 4, G = 2, D = 8, P = 3;
  const Case c{{.B = B, .H = H, .G = G, .T = T, .Dk = D, .Dv = D, .lag = 5, .past = P, .rule = WriteRule::kDelta}};
  const MemoryScanInputs in = RandomInputs(c);
  const Tensor d_reads = Normal({B, T, H, D}), d_final = Normal({B, G, D, D});
  const ScanRun expected = RunScan(Leaves(in, at::kFloat), Backend::kFused, d_reads, d_final);

  const Tensor packed = at::cat({in.q, in.k, in.v}, 2).to(at::kFloat).requires_grad_(true);
  MemoryScanInputs slices = Leaves(in, at::kFloat);
  slices.q = packed.narrow(2, 0, H);
  slices.k = packed.narrow(2, H, G);
  slices.v = packed.narrow(2, H + G, G);
  const MemoryScanOutputs out = MemoryScan(slices, Backend::kFused);
  EXPECT_TRUE(out.reads.equal(expected.reads));
  EXPECT_TRUE(out.final_state.equal(expected.final_state));
  torch::autograd::backward({out.reads, out.final_state}, {d_reads.to(at::kFloat), d_final.to(at::kFloat)});
  EXPECT_TRUE(
      packed.grad().equal(at::cat({expected.gradients[kQ], expected.gradients[kK], expected.gradients[kV]}, 2)));

  MemoryScanInputs turned = Leaves(in, at::kFloat);
  for (const Field& field : kFields) {
    Tensor& x = turned.*field.tensor;
    x = x.detach().transpose(-1, -2).contiguous().transpose(-1, -2).requires_grad_(true);
  }
  // The gradients of the outputs too, and broadcast.
  const ScanRun strided = RunScan(turned, Backend::kFused, d_reads.transpose(1, 3).contiguous().transpose(1, 3),
                                  d_final.transpose(2, 3).contiguous().transpose(2, 3));
  EXPECT_TRUE(strided.reads.equal(expected.reads));
  for (size_t i = 0; i < kFields.size(); ++i) {
    EXPECT_TRUE(strided.gradients[i].equal(expected.gradients[i])) << kFields[i].name;
  }
  const Tensor one = at::ones({}, at::kFloat);
  const ScanRun broadcast =
      RunScan(Leaves(in, at::kFloat), Backend::kFused, one.expand({B, T, H, D}), one.expand({B, G, D, D}));
  const ScanRun filled =
      RunScan(Leaves(in, at::kFloat), Backend::kFused, at::ones({B, T, H, D}), at::ones({B, G, D, D}));
  for (size_t i = 0; i < kFields.size(); ++i) {
    EXPECT_TRUE(broadcast.gradients[i].equal(filled.gradients[i])) << kFields[i].name;
  }
}

// Each input alone, and each output alone: the gradient is what it is among all others.
TEST_F(MemoryScanOp, ComputesTheGradientsThatAreAskedFor) {
  for (const bool per_token : {true, false}) {
    const Case c{{.B = 2, .H = 2, .G = 1, .T = 40, .Dk = 6, .Dv = 5, .lag = 4, .past = 3}, per_token, per_token};
    const MemoryScanInputs in = RandomInputs(c);
    const Tensor d_reads = Normal({2, 40, 2, 5}), d_final = Normal({2, 1, 6, 5});
    const Tensor no_reads = at::zeros_like(d_reads), no_final = at::zeros_like(d_final);
    const ScanRun all = RunScan(Leaves(in, at::kFloat), Backend::kFused, d_reads, no_final);
    const ScanRun state = RunScan(Leaves(in, at::kFloat), Backend::kFused, no_reads, d_final);
    for (size_t i = 0; i < kFields.size(); ++i) {
      if (!(in.*kFields[i].tensor).defined()) continue;
      SCOPED_TRACE(kFields[i].name);
      MemoryScanInputs alone = Leaves(in, at::kFloat);
      for (size_t j = 0; j < kFields.size(); ++j) {
        if (Tensor& x = alone.*kFields[j].tensor; j != i && x.defined()) x = x.detach();
      }
      const Tensor& x = alone.*kFields[i].tensor;
      const MemoryScanOutputs out = MemoryScan(alone, Backend::kFused);
      const auto of_reads = torch::autograd::grad({out.reads}, {x}, {d_reads.to(at::kFloat)}, /*retain_graph=*/true);
      EXPECT_TRUE(of_reads[0].equal(all.gradients[i]));
      const auto of_state = torch::autograd::grad({out.final_state}, {x}, {d_final.to(at::kFloat)});
      EXPECT_TRUE(of_state[0].equal(state.gradients[i]));
    }
  }
}

TEST_F(MemoryScanOp, WithoutGradientsNothingIsKept) {
  const Case c{{.B = 1, .H = 2, .G = 2, .T = 40, .Dk = 8, .Dv = 8, .lag = 4, .past = 4}};
  const MemoryScanInputs in = Leaves(RandomInputs(c), at::kFloat);
  const auto owners = in.k.use_count();
  const MemoryScanOutputs kept = MemoryScan(in, Backend::kFused);
  EXPECT_TRUE(kept.reads.requires_grad() && kept.final_state.requires_grad());
  const auto with_graph = in.k.use_count();
  EXPECT_GT(with_graph, owners);
  {
    const at::NoGradGuard no_grad;
    const MemoryScanOutputs out = MemoryScan(in, Backend::kFused);
    EXPECT_FALSE(out.reads.requires_grad() || out.final_state.requires_grad());
    EXPECT_EQ(in.k.use_count(), with_graph);
    EXPECT_TRUE(out.reads.equal(kept.reads) && out.final_state.equal(kept.final_state));
  }
  MemoryScanInputs constant = in;
  for (const Field& field : kFields) constant.*field.tensor = (in.*field.tensor).detach();
  const MemoryScanOutputs out = MemoryScan(constant, Backend::kFused);
  EXPECT_FALSE(out.reads.requires_grad() || out.final_state.requires_grad());
  EXPECT_EQ(constant.k.use_count(), 1);
}

TEST_F(MemoryScanOp, DivergenceThrows) {
  const Case c{{.B = 2, .H = 2, .G = 2, .T = 200, .Dk = 8, .Dv = 8, .rule = WriteRule::kDelta}, false, false};
  MemoryScanInputs in = Leaves(RandomInputs(c), at::kFloat);
  const MemoryScanInputs fine = in;
  in.k = (in.k.detach() * 1000).requires_grad_(true);
  EXPECT_THROW(MemoryScan(in, Backend::kFused), DivergedError);
  {
    const at::NoGradGuard no_grad;
    EXPECT_THROW(MemoryScan(in, Backend::kFused), DivergedError);
  }
  at::set_num_threads(2);
  try {
    MemoryScan(in, Backend::kFused);
    ADD_FAILURE() << "no exception";
  } catch (const DivergedError& error) {
    EXPECT_NE(std::string(error.what()).find("batch row 0, head 0"), std::string::npos) << error.what();
  }
  const MemoryScanOutputs out = MemoryScan(fine, Backend::kFused);
  const Tensor infinite = at::full_like(out.reads, std::numeric_limits<float>::infinity());
  EXPECT_THROW(torch::autograd::grad({out.reads}, {fine.q}, {infinite}), DivergedError);
}

TEST_F(MemoryScanOp, LowPrecisionIsComputedInFloat) {
  const Case c{{.B = 2, .H = 2, .G = 2, .T = 70, .Dk = 8, .Dv = 9, .lag = 3, .rule = WriteRule::kDelta}};
  MemoryScanInputs in = RandomInputs(c);
  for (Tensor* x : {&in.q, &in.k, &in.v}) *x = x->to(at::kBFloat16).to(at::kDouble);
  const MemoryScanOutputs expected = MemoryScan(in);
  MemoryScanInputs low = in;
  for (Tensor* x : {&low.q, &low.k, &low.v}) *x = x->to(at::kBFloat16);
  for (Tensor* x : {&low.log_decay, &low.write_strength, &low.initial}) *x = x->to(at::kFloat);
  const MemoryScanOutputs out = MemoryScan(low);
  EXPECT_EQ(out.reads.scalar_type(), at::kBFloat16);
  EXPECT_EQ(out.final_state.scalar_type(), at::kFloat);
  // Half a unit in the last of bfloat16's 8 bits, and float rounding: 100 roundings of the largest read.
  const double float_error = 100 * std::numeric_limits<float>::epsilon() * MaxAbs(expected.reads);
  const Tensor excess = (out.reads.to(at::kDouble) - expected.reads).abs() - expected.reads.abs() / 256;
  EXPECT_LE(excess.max().item<double>(), float_error);
  EXPECT_LE(MaxAbs(out.final_state.to(at::kDouble) - expected.final_state),
            100 * std::numeric_limits<float>::epsilon() * MaxAbs(expected.final_state));
}

TEST_F(MemoryScanOp, EmptyBlockHandsTheStateOn) {
  const Case c{{.B = 2, .H = 2, .G = 1, .T = 0, .Dk = 3, .Dv = 4, .lag = 2, .past = 2}};
  for (const Backend backend : {Backend::kFused, Backend::kComposite}) {
    const MemoryScanInputs in = Leaves(RandomInputs(c), at::kFloat);
    const MemoryScanOutputs out = MemoryScan(in, backend);
    EXPECT_EQ(out.reads.sizes(), at::IntArrayRef({2, 0, 2, 4}));
    EXPECT_TRUE(out.final_state.equal(in.initial));
    const auto gradient = torch::autograd::grad({out.final_state.sum()}, {in.initial});
    EXPECT_TRUE(gradient[0].equal(at::ones_like(in.initial)));
  }
}

TEST_F(MemoryScanOp, RefusesWhatItCannotDo) {
  const Case c{{.B = 1, .H = 2, .G = 2, .T = 4, .Dk = 3, .Dv = 3, .lag = 2, .past = 2}};
  const MemoryScanInputs in = Leaves(RandomInputs(c), at::kFloat);
  const auto with = [&](auto change) {
    MemoryScanInputs changed = in;
    change(changed);
    return changed;
  };
  for (const Backend backend : {Backend::kFused, Backend::kComposite}) {
    EXPECT_THROW(MemoryScan(with([](auto& x) { x.k = x.k.narrow(1, 0, 3); }), backend), c10::Error);
    EXPECT_THROW(MemoryScan(with([](auto& x) { x.lag = 1; }), backend), c10::Error);
    EXPECT_THROW(MemoryScan(with([](auto& x) { x.past_v = Tensor(); }), backend), c10::Error);
    EXPECT_THROW(MemoryScan(with([](auto& x) { x.past_log_decay = Tensor(); }), backend), c10::Error);
    EXPECT_THROW(MemoryScan(with([](auto& x) { x.log_decay = x.log_decay[0][0]; }), backend), c10::Error);
    EXPECT_THROW(MemoryScan(with([](auto& x) { x.mode = ScanMode::kChunkStart; }), backend), c10::Error);
    for (const ScanMode mode : {ScanMode::kChunkStart, ScanMode::kChunkMean}) {
      const MemoryScanInputs gated =
          Leaves(RandomInputs({{.T = 4, .Dk = 3, .Dv = 3, .rule = WriteRule::kGatedDelta, .mode = mode, .chunk = 2}}),
                 at::kFloat);
      EXPECT_THROW(MemoryScan(gated, backend), c10::Error);
    }
  }
  const Tensor sum = MemoryScan(in, Backend::kFused).reads.sum();
  EXPECT_THROW(torch::autograd::grad({sum}, {in.q}, {}, /*retain_graph=*/true, /*create_graph=*/true), c10::Error);
}

}  // namespace
}  // namespace tensorcache::train
