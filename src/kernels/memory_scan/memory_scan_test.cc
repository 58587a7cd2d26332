// Fast against reference, the gradients, and the extremes. memory_scan_invariant_test.cc has the splits.

#include "tensorcache/kernels/memory_scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/memory_scan/memory_scan_ref.h"
#include "kernels/memory_scan/memory_scan_testing.h"
#include "testing/kernel_testing.h"

namespace tensorcache {
namespace {

using testing::ForEachTarget;
using testing::GuardedBuffer;
using testing::RandomScanProblem;
using testing::RowBuffer;
using testing::ScanGradients;
using testing::ScanOptions;
using testing::ScanProblem;
using testing::WithinNorm;

std::string Describe(const MemoryScanShape& s) {
  static const char* const kModes[] = {"exact", "chunk-start", "chunk-mean"};
  return testing::RuleName(s.rule) + " " + kModes[static_cast<int>(s.mode)] + " B=" + std::to_string(s.B) +
         " H=" + std::to_string(s.H) + " G=" + std::to_string(s.G) + " T=" + std::to_string(s.T) +
         " Dk=" + std::to_string(s.Dk) + " Dv=" + std::to_string(s.Dv) + " lag=" + std::to_string(s.lag) +
         " past=" + std::to_string(s.past) + " chunk=" + std::to_string(s.chunk);
}

double MaxAbs(const std::vector<float>& x) { return testing::MaxAbs(x.data(), static_cast<int64_t>(x.size())); }

// Frobenius norm of the largest state, from the problem's own norms: |A_0| decayed at most by 1, plus what is written.
// A bound for every rule here: delta residuals are no larger than the values plus what they correct.
double StateNorm(const ScanProblem<float>& p, const std::vector<float>& final_state) {
  const auto norm = [](const std::vector<float>& x) {
    return testing::Norm2(x.data(), static_cast<int64_t>(x.size()));
  };
  return norm(p.initial.Values()) + norm(final_state) + norm(p.k.Values()) + norm(p.past_k.Values());
}

struct Forward {
  RowBuffer reads, final_state;
  std::vector<float> saved;
};

Forward RunRef(const ScanProblem<float>& p) {
  const MemoryScanShape& s = p.shape;
  Forward out{RowBuffer(s.B, s.H, s.T, s.Dv, 0), RowBuffer(s.B, s.G, s.Dk, s.Dv, 0), {}};
  MemoryScanForwardArgs<float> args = p.Forward();
  args.reads = out.reads.rows();
  args.final_state = out.final_state.rows();
  MemoryScanForwardReference(args);
  return out;
}

// With poisoned scratch, saved and outputs; checks that nothing outside the outputs was written.
Forward RunFast(const ScanProblem<float>& p, int64_t pad) {
  const MemoryScanShape& s = p.shape;
  Forward out{RowBuffer(s.B, s.H, s.T, s.Dv, pad), RowBuffer(s.B, s.G, s.Dk, s.Dv, pad), {}};
  GuardedBuffer scratch(MemoryScanScratchFloats(s));
  GuardedBuffer saved(MemoryScanSavedFloats(s));
  MemoryScanForwardArgs<float> args = p.Forward();
  args.reads = out.reads.rows();
  args.final_state = out.final_state.rows();
  args.saved = saved.data();
  const Status status = MemoryScanForward(args, 0, s.B * s.G, scratch.data());
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(out.reads.PadsIntact() && out.final_state.PadsIntact() && scratch.Intact() && saved.Intact());
  out.saved.assign(saved.data(), saved.data() + saved.size());
  return out;
}

void ExpectNear(const std::string& what, const RowBuffer& actual, const RowBuffer& expected, double magnitude,
                double ulps) {
  const std::vector<float> a = actual.Values(), e = expected.Values();
  ASSERT_EQ(a.size(), e.size());
  EXPECT_TRUE(WithinNorm(a.data(), e.data(), static_cast<int64_t>(a.size()), magnitude, ulps)) << what;
}

// A dot product of n terms rounds like a random walk: sqrt(n) eps times the norms of its factors.
double Walk(const MemoryScanShape& s) { return std::sqrt(static_cast<double>(s.Dk + s.Dv + s.T)); }

void CheckForward(const MemoryScanShape& s, const ScanOptions& o, uint64_t seed) {
  SCOPED_TRACE(Describe(s));
  const ScanProblem<float> p = RandomScanProblem(s, o, seed);
  const Forward expected = RunRef(p), actual = RunFast(p, o.pad);
  const double state = StateNorm(p, expected.final_state.Values());
  const double query = MaxAbs(p.q.Values());
  ExpectNear("reads", actual.reads, expected.reads, state * query, Walk(s));
  ExpectNear("final state", actual.final_state, expected.final_state, state, Walk(s));
}

void CheckBackward(const MemoryScanShape& s, const ScanOptions& o, uint64_t seed) {
  SCOPED_TRACE(Describe(s));
  const ScanProblem<float> p = RandomScanProblem(s, o, seed);
  ScanGradients<float> expected(s), actual(s, o.pad);
  MemoryScanBackwardArgs<float> ref_args = p.Backward();
  expected.Attach(&ref_args);
  MemoryScanBackwardReference(ref_args);

  const Forward forward = RunFast(p, o.pad);
  GuardedBuffer scratch(MemoryScanBackwardScratchFloats(s));
  MemoryScanBackwardArgs<float> args = p.Backward();
  args.saved = forward.saved.data();
  actual.Attach(&args);
  ASSERT_TRUE(MemoryScanBackward(args, 0, s.B * s.G, scratch.data()).ok());
  EXPECT_TRUE(scratch.Intact());
  const auto check = [&](const char* what, const RowBuffer& a, const RowBuffer& e, double magnitude) {
    EXPECT_TRUE(a.PadsIntact()) << what;
    ExpectNear(what, a, e, magnitude, Walk(s));
  };
  // Each gradient is a sum of products that may cancel: its rounding is judged by its largest entry plus one term of the
  // sum. Those of g and b are sums over the head's width of q . dq, v . dv and A . dA.
  const double q = MaxAbs(p.q.Values()), k = MaxAbs(p.k.Values()) + MaxAbs(p.past_k.Values());
  const double v = MaxAbs(p.v.Values()) + MaxAbs(p.past_v.Values()), A = MaxAbs(forward.final_state.Values()) + k * v;
  const double dr = MaxAbs(p.d_reads.Values());
  const double dA = MaxAbs(expected.initial.Values()) + q * dr;
  const double dq = MaxAbs(expected.q.Values()) + A * dr;
  const double dk = MaxAbs(expected.k.Values()) + MaxAbs(expected.past_k.Values()) + v * dA;
  const double dv = MaxAbs(expected.v.Values()) + MaxAbs(expected.past_v.Values()) + k * dA;
  const double scalar = static_cast<double>(s.Dk + s.Dv) * (q * dq + v * dv + A * dA);
  check("d_q", actual.q, expected.q, dq);
  check("d_k", actual.k, expected.k, dk);
  check("d_v", actual.v, expected.v, dv);
  check("d_log_decay", actual.g, expected.g, scalar);
  check("d_write_strength", actual.b, expected.b, scalar);
  check("d_past_k", actual.past_k, expected.past_k, dk);
  check("d_past_v", actual.past_v, expected.past_v, dv);
  check("d_past_log_decay", actual.past_g, expected.past_g, scalar);
  check("d_past_write_strength", actual.past_b, expected.past_b, scalar);
  check("d_initial", actual.initial, expected.initial, dA);
}

// Every rule and mode, odd shapes, GQA, rings, strides; `big` adds the lengths that span several chunks.
std::vector<MemoryScanShape> Shapes(bool big) {
  std::vector<MemoryScanShape> shapes;
  for (const WriteRule rule : testing::AllWriteRules()) {
    const int64_t extra = rule == WriteRule::kWedge ? 0 : 1;
    const auto add = [&](MemoryScanShape s) {
      s.rule = rule;
      shapes.push_back(s);
    };
    add({.B = 1, .H = 1, .G = 1, .T = 0, .Dk = 16, .Dv = 16});
    add({.B = 2, .H = 2, .G = 1, .T = 1, .Dk = 3, .Dv = 3 + extra});
    add({.B = 1, .H = 1, .G = 1, .T = 17, .Dk = 1, .Dv = 1});
    add({.B = 2, .H = 4, .G = 2, .T = 37, .Dk = 16, .Dv = 16 + extra, .lag = 5, .past = 3});
    add({.B = 1, .H = 2, .G = 2, .T = 70, .Dk = 32, .Dv = 32, .lag = 12, .past = 12});
    add({.B = 1, .H = 1, .G = 1, .T = 40, .Dk = 20, .Dv = 20 + 4 * extra, .lag = 100, .past = 50});
    add({.B = 1, .H = 3, .G = 1, .T = 129, .Dk = 48, .Dv = 48 + extra, .lag = 1, .past = 0});
    for (const ScanMode mode : {ScanMode::kChunkStart, ScanMode::kChunkMean}) {
      if (!testing::HasChunkModes(rule)) break;
      add({.B = 2, .H = 2, .G = 1, .T = 23, .Dk = 16, .Dv = 16 + extra, .mode = mode, .chunk = 5});
      add({.B = 1, .H = 1, .G = 1, .T = 64, .Dk = 24, .Dv = 24, .mode = mode, .chunk = 32});
      add({.B = 1, .H = 1, .G = 1, .T = 7, .Dk = 8, .Dv = 8, .mode = mode, .chunk = 100});
    }
    if (!big) continue;
    add({.B = 1, .H = 2, .G = 1, .T = 300, .Dk = 64, .Dv = 64 + extra, .lag = 63, .past = 40});
    add({.B = 1, .H = 1, .G = 1, .T = 260, .Dk = 80, .Dv = 80, .lag = 0});
    add({.B = 1, .H = 1, .G = 1, .T = 200, .Dk = 128, .Dv = 128, .lag = 30, .past = 30});
    if (!testing::HasChunkModes(rule)) continue;
    add({.B = 1, .H = 1, .G = 1, .T = 300, .Dk = 64, .Dv = 64, .mode = ScanMode::kChunkStart, .chunk = 128});
  }
  return shapes;
}

TEST(MemoryScan, ForwardEqualsReference) {
  bool best = true;
  ForEachTarget([&](const std::string&) {
    uint64_t seed = 1;
    for (const MemoryScanShape& s : Shapes(best)) {
      CheckForward(s, {.pad = 3}, ++seed);
      CheckForward(s, {.constant_per_head = true, .zero_initial = true, .pad = 0}, ++seed);
    }
    best = false;
  });
}

TEST(MemoryScan, BackwardEqualsReference) {
  bool best = true;
  ForEachTarget([&](const std::string&) {
    uint64_t seed = 100;
    for (const MemoryScanShape& s : Shapes(best)) {
      CheckBackward(s, {.pad = 5}, ++seed);
      CheckBackward(s, {.constant_per_head = true, .zero_initial = true}, ++seed);
    }
    best = false;
  });
}

// Decays of every size, which tell apart what is decayed from what is not.
TEST(MemoryScan, WideDecaysEqualReference) {
  ForEachTarget([&](const std::string&) {
    uint64_t seed = 300;
    for (const WriteRule rule : testing::AllWriteRules()) {
      const MemoryScanShape s{.H = 2, .G = 1, .T = 75, .Dk = 17, .Dv = 17, .lag = 6, .past = 4, .rule = rule};
      CheckForward(s, {.min_decay = 0.01, .pad = 1}, ++seed);
      CheckBackward(s, {.min_decay = 0.01, .pad = 1}, ++seed);
    }
  });
}

// Null gradients are not written, null d_final means zero.
TEST(MemoryScan, BackwardTakesNullGradients) {
  const MemoryScanShape s{.B = 1, .H = 1, .G = 1, .T = 20, .Dk = 8, .Dv = 8, .lag = 3, .past = 2};
  const ScanProblem<float> p = RandomScanProblem(s, {}, 5);
  const Forward forward = RunFast(p, 0);
  std::vector<float> scratch(static_cast<size_t>(MemoryScanBackwardScratchFloats(s)));
  MemoryScanBackwardArgs<float> args = p.Backward();
  args.saved = forward.saved.data();
  args.d_final = {};
  RowBuffer d_q(s.B, s.H, s.T, s.Dk, 0), expected(s.B, s.H, s.T, s.Dk, 0);
  args.d_q = d_q.rows();
  ASSERT_TRUE(MemoryScanBackward(args, 0, 1, scratch.data()).ok());
  MemoryScanBackwardArgs<float> ref_args = p.Backward();
  ref_args.d_final = {};
  ref_args.d_q = expected.rows();
  MemoryScanBackwardReference(ref_args);
  ExpectNear("d_q", d_q, expected, MaxAbs(expected.Values()), Walk(s));
}

// The reference's gradients against central differences of its own forward pass, all in double.
TEST(MemoryScan, ReferenceGradientsMatchFiniteDifferences) {
  const double step = 1e-6;
  for (const MemoryScanShape& base : Shapes(false)) {
    MemoryScanShape s = base;
    s.T = std::min<int64_t>(s.T, 9);
    s.Dk = std::min<int64_t>(s.Dk, 4);
    s.Dv = s.rule == WriteRule::kWedge ? s.Dk : std::min<int64_t>(s.Dv, 5);
    s.lag = std::min<int64_t>(s.lag, 4);
    s.past = std::min<int64_t>(s.past, s.lag);
    s.chunk = std::min<int64_t>(s.chunk, 4);
    SCOPED_TRACE(Describe(s));
    ScanProblem<double> p = RandomScanProblem(s, {.min_decay = 0.5}, 7).Cast<double>();
    ScanGradients<double> gradients(s);
    MemoryScanBackwardArgs<double> args = p.Backward();
    gradients.Attach(&args);
    MemoryScanBackwardReference(args);

    // The scalar sum(reads * d_reads) + sum(final * d_final).
    const auto objective = [&] {
      testing::RowBufferOf<double> reads(s.B, s.H, s.T, s.Dv, 0), final_state(s.B, s.G, s.Dk, s.Dv, 0);
      MemoryScanForwardArgs<double> forward = p.Forward();
      forward.reads = reads.rows();
      forward.final_state = final_state.rows();
      MemoryScanForwardReference(forward);
      double sum = 0;
      const std::vector<double> r = reads.Values(), dr = p.d_reads.Values();
      const std::vector<double> f = final_state.Values(), df = p.d_final.Values();
      for (size_t i = 0; i < r.size(); ++i) sum += r[i] * dr[i];
      for (size_t i = 0; i < f.size(); ++i) sum += f[i] * df[i];
      return sum;
    };
    const auto check = [&](const char* what, testing::RowBufferOf<double>& input,
                           const testing::RowBufferOf<double>& gradient) {
      const std::vector<double> expected = gradient.Values();
      size_t i = 0;
      input.ForEach([&](double& x) {
        if (i >= expected.size()) return;  // T = 0 keeps one unused scalar
        const double at = x;
        x = at + step;
        const double above = objective();
        x = at - step;
        const double below = objective();
        x = at;
        EXPECT_NEAR((above - below) / (2 * step), expected[i], 1e-7 * (1 + std::abs(expected[i]))) << what << " " << i;
        ++i;
      });
    };
    check("q", p.q, gradients.q);
    check("k", p.k, gradients.k);
    check("v", p.v, gradients.v);
    check("log_decay", p.g, gradients.g);
    check("write_strength", p.b, gradients.b);
    check("initial", p.initial, gradients.initial);
    if (s.past == 0) continue;
    // Ring rows are rotated: compare token by token.
    const auto check_past = [&](const char* what, testing::RowBufferOf<double>& input,
                                testing::RowBufferOf<double>& gradient, int64_t width) {
      for (int64_t token = 0; token < s.past; ++token) {
        for (int64_t d = 0; d < width; ++d) {
          double& x = input.rows().At(0, 0, (p.past_start + token) % p.past_capacity)[d];
          const double at = x;
          x = at + step;
          const double above = objective();
          x = at - step;
          const double below = objective();
          x = at;
          const double expected = gradient.rows().At(0, 0, token)[d];
          EXPECT_NEAR((above - below) / (2 * step), expected, 1e-7 * (1 + std::abs(expected))) << what << " " << token;
        }
      }
    };
    check_past("past k", p.past_k, gradients.past_k, s.Dk);
    check_past("past v", p.past_v, gradients.past_v, s.Dv);
    check_past("past log_decay", p.past_g, gradients.past_g, 1);
    check_past("past write_strength", p.past_b, gradients.past_b, 1);
  }
}

// The paper's claim for its scan, which ours must keep: equal to the recurrence within float32 epsilon.
TEST(MemoryScan, OuterScanIsExactTo1e6) {
  for (const int64_t D : {16, 32, 64, 80, 128}) {
    const MemoryScanShape s{.B = 1, .H = 1, .G = 1, .T = 1024, .Dk = D, .Dv = D, .lag = 12};
    const ScanProblem<float> p = RandomScanProblem(
        s, {.constant_per_head = true, .zero_initial = true, .min_decay = 0.995, .max_decay = 0.995}, 3);
    const Forward expected = RunRef(p), actual = RunFast(p, 0);
    const auto relative = [](const RowBuffer& a, const RowBuffer& e) {
      const std::vector<float> x = a.Values(), y = e.Values();
      double error = 0, norm = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        error += std::pow(static_cast<double>(x[i]) - y[i], 2);
        norm += std::pow(static_cast<double>(y[i]), 2);
      }
      return std::sqrt(error / norm);
    };
    EXPECT_LT(relative(actual.reads, expected.reads), 1e-6) << D;
    EXPECT_LT(relative(actual.final_state, expected.final_state), 1e-6) << D;
  }
}

TEST(MemoryScan, WedgeStaysExactlyAntisymmetric) {
  ForEachTarget([&](const std::string&) {
    const int64_t D = 20;
    const MemoryScanShape s{.B = 1, .H = 1, .G = 1, .T = 333, .Dk = D, .Dv = D, .rule = WriteRule::kWedge};
    const ScanProblem<float> p = RandomScanProblem(s, {.zero_initial = true}, 11);
    const auto expect_antisymmetric = [&](RowBuffer& state) {
      for (int64_t i = 0; i < D; ++i) {
        for (int64_t j = 0; j < D; ++j) {
          ASSERT_EQ(state.rows().At(0, 0, i)[j] + state.rows().At(0, 0, j)[i], 0.0f) << i << " " << j;
        }
      }
    };
    Forward out = RunFast(p, 0);
    expect_antisymmetric(out.final_state);
    // and in single steps from there
    for (int64_t t = 0; t < s.T; ++t) {
      MemoryStepArgs step;
      step.Dk = step.Dv = D;
      step.rule = s.rule;
      step.evicted = p.Writes();
      step.state = out.final_state.rows();
      step.evicted.k.data += t * step.evicted.k.token;
      step.evicted.v.data += t * step.evicted.v.token;
      step.evicted.log_decay.data += t * step.evicted.log_decay.token;
      step.evicted.write_strength.data += t * step.evicted.write_strength.token;
      ASSERT_TRUE(MemoryStep(step, 0, 1).ok());
    }
    expect_antisymmetric(out.final_state);
  });
}

Status RunProblem(const ScanProblem<float>& p, Forward* out) {
  const MemoryScanShape& s = p.shape;
  *out = {RowBuffer(s.B, s.H, s.T, s.Dv, 0), RowBuffer(s.B, s.G, s.Dk, s.Dv, 0), {}};
  std::vector<float> scratch(static_cast<size_t>(MemoryScanScratchFloats(s)));
  MemoryScanForwardArgs<float> args = p.Forward();
  args.reads = out->reads.rows();
  args.final_state = out->final_state.rows();
  return MemoryScanForward(args, 0, s.B * s.G, scratch.data());
}

Status RunExtreme(const MemoryScanShape& s, const ScanOptions& o, Forward* out) {
  return RunProblem(RandomScanProblem(s, o, 21), out);
}

bool AllFinite(const RowBuffer& x) {
  for (const float value : x.Values()) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

TEST(MemoryScan, SlowDecayOverAMillionSteps) {
  const int64_t D = 8;
  const ScanProblem<float> p = RandomScanProblem(
      {.T = 1'000'000, .Dk = D, .Dv = D}, {.constant_per_head = true, .min_decay = 0.9999, .max_decay = 0.9999}, 21);
  Forward out;
  ASSERT_TRUE(RunProblem(p, &out).ok());
  EXPECT_TRUE(AllFinite(out.reads) && AllFinite(out.final_state));
  // In the stationary state |A|_F^2 = b^2 |k|^2 |v|^2 / (1 - decay^2), give or take the noise of 5000 effective terms.
  const double b = *p.Writes().write_strength.At(0, 0, 0);
  const double expected = b * std::sqrt(static_cast<double>(D) / (1 - 0.9999 * 0.9999));
  const std::vector<float> A = out.final_state.Values();
  EXPECT_NEAR(testing::Norm2(A.data(), D * D) / expected, 1.0, 0.3);
}

TEST(MemoryScan, ExtremesStayFiniteOrSayWhy) {
  Forward out;
  for (const WriteRule rule : testing::AllWriteRules()) {
    const MemoryScanShape s{.H = 2, .G = 1, .T = 500, .Dk = 32, .Dv = 32, .lag = 7, .rule = rule};
    SCOPED_TRACE(Describe(s));
    ASSERT_TRUE(RunExtreme(s, {.min_decay = 1e-6, .max_decay = 1e-6}, &out).ok());
    EXPECT_TRUE(AllFinite(out.reads) && AllFinite(out.final_state));
    ASSERT_TRUE(RunExtreme(s, {.key_norm = 0}, &out).ok());
    EXPECT_TRUE(AllFinite(out.reads) && AllFinite(out.final_state));
    const Status big_keys = RunExtreme(s, {.key_norm = 1e3}, &out);
    if (IsDelta(rule)) {
      EXPECT_EQ(big_keys.code(), StatusCode::kDiverged);
      EXPECT_NE(big_keys.message().find("the " + testing::RuleName(rule) + " rule"), std::string::npos)
          << big_keys.message();
      EXPECT_NE(big_keys.message().find("normalise the keys"), std::string::npos) << big_keys.message();
    } else {
      EXPECT_TRUE(big_keys.ok());
      EXPECT_TRUE(AllFinite(out.reads) && AllFinite(out.final_state));
    }
  }
}

// A token that forgets everything, among tokens that forget nothing: weights after it must not lose their digits.
TEST(MemoryScan, AbruptForgettingKeepsLaterWeightsExact) {
  for (const WriteRule rule : testing::AllWriteRules()) {
    const MemoryScanShape s{.T = 64, .Dk = 64, .Dv = 64, .rule = rule};
    SCOPED_TRACE(Describe(s));
    ScanProblem<float> p = RandomScanProblem(s, {.min_decay = 0.9999, .max_decay = 1.0}, 2);
    *p.g.rows().At(0, 0, 7) = -80000.0f;
    const Forward expected = RunRef(p), actual = RunFast(p, 0);
    ExpectNear("reads", actual.reads, expected.reads, StateNorm(p, expected.final_state.Values()), Walk(s));
    // Write strength 0 in places, as one-hot routing gives, has a finite gradient.
    *p.b.rows().At(0, 0, 9) = 0;
    ScanGradients<float> gradients(s);
    const Forward forward = RunFast(p, 0);
    std::vector<float> scratch(static_cast<size_t>(MemoryScanBackwardScratchFloats(s)));
    MemoryScanBackwardArgs<float> args = p.Backward();
    args.saved = forward.saved.data();
    gradients.Attach(&args);
    ASSERT_TRUE(MemoryScanBackward(args, 0, 1, scratch.data()).ok());
    EXPECT_TRUE(AllFinite(gradients.b) && AllFinite(gradients.g) && AllFinite(gradients.v));
    EXPECT_NE(gradients.b.rows().At(0, 0, 9)[0], 0.0f);
  }
}

TEST(MemoryScan, ValidateNamesTheProblem) {
  const MemoryScanShape good{.T = 8, .Dk = 4, .Dv = 4};
  EXPECT_TRUE(ValidateMemoryScan(good).ok());
  const auto message = [&](const auto& change) {
    MemoryScanShape s = good;
    change(s);
    return ValidateMemoryScan(s).message();
  };
  EXPECT_NE(message([](auto& s) { s.rule = WriteRule::kWedge, s.Dv = 5; }).find("wedge"), std::string::npos);
  EXPECT_NE(message([](auto& s) { s.H = 3, s.G = 2; }).find("multiple"), std::string::npos);
  EXPECT_NE(message([](auto& s) { s.past = 1; }).find("ring"), std::string::npos);
  EXPECT_NE(message([](auto& s) { s.mode = ScanMode::kChunkMean; }).find("chunk"), std::string::npos);
  EXPECT_NE(message([](auto& s) { s.mode = ScanMode::kChunkStart, s.chunk = 2, s.lag = 1; }).find("lag"),
            std::string::npos);
  for (const ScanMode mode : {ScanMode::kChunkStart, ScanMode::kChunkMean}) {
    const auto gated_chunks = [&](auto& s) { s.rule = WriteRule::kGatedDelta, s.mode = mode, s.chunk = 2; };
    EXPECT_NE(message(gated_chunks).find("gated_delta has no chunk modes"), std::string::npos);
  }
  EXPECT_NE(message([](auto& s) { s.Dk = 0; }).find("Dk"), std::string::npos);
  EXPECT_NE(message([](auto& s) { s.T = -1; }).find("negative"), std::string::npos);
}

}  // namespace
}  // namespace tensorcache
