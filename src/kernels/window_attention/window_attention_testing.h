// Random problems for the tests of window attention: inputs with odd strides, everything unread or unwritten poisoned,
// and tolerances derived from the inputs' norms.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tensorcache/kernels/window_attention.h"
#include "testing/kernel_testing.h"

namespace tensorcache::testing {

struct WindowCase {
  WindowAttentionShape shape;
  int64_t capacity = 0;  // of the past ring
  int64_t start = 0;
  bool q_sink = false;
  double key_scale = 1.0;
};

inline std::string Describe(const WindowAttentionShape& n) {
  std::string text;
  const auto add = [&](const char* name, int64_t value) {
    text += std::string(name) + "=" + std::to_string(value) + " ";
  };
  add("B", n.B), add("H", n.H), add("G", n.G), add("T", n.T), add("D", n.D), add("Dv", n.Dv);
  add("W", n.W == kUnboundedWindow ? -1 : n.W), add("P", n.P), add("S", n.S), add("position", n.position);
  return text;
}

// The target that dispatch chooses by default; it gets the large shapes, on which the others would take long. Not to be
// called inside ForEachTarget.
inline std::string BestTarget() {
  hwy::SetSupportedTargetsForTest(0);
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(targets & -targets);
}

inline double MaxRowNorm(const RowBuffer& x) {
  double worst = 0;
  for (int64_t row = 0; row < x.B * x.H * x.T; ++row) {
    const double norm = Norm2(x.buffer.data() + row * (x.D + x.pad), x.D);
    if (norm > worst) worst = norm;  // poisoned rows give NaN and do not count
  }
  return worst;
}

inline double MaxAbsRows(const RowBuffer& x) {
  double worst = 0;
  for (int64_t row = 0; row < x.B * x.H * x.T; ++row) {
    worst = std::max(worst, MaxAbs(x.buffer.data() + row * (x.D + x.pad), x.D));  // NaN does not count
  }
  return worst;
}

// Row by row, so that pads do not count.
inline void ExpectRowsNear(const RowBuffer& actual, const RowBuffer& expected, double magnitude, double ulps,
                           const char* what) {
  EXPECT_TRUE(actual.PadsIntact()) << what;
  for (int64_t b = 0; b < actual.B; ++b) {
    for (int64_t h = 0; h < actual.H; ++h) {
      for (int64_t t = 0; t < actual.T; ++t) {
        ASSERT_TRUE(WithinNorm(actual.Row(b, h, t), expected.Row(b, h, t), actual.D, magnitude, ulps))
            << what << " at batch " << b << ", head " << h << ", token " << t;
      }
    }
  }
}

struct WindowProblem {
  WindowProblem(const WindowCase& c, Rng& rng)
      : test_case(c),
        n(c.shape),
        q(n.B, n.H, n.T, n.D, 3),
        k(n.B, n.G, n.T, n.D, 1),
        v(n.B, n.G, n.T, n.Dv, 2),
        past_k(n.B, n.G, c.capacity, n.D, 5),
        past_v(n.B, n.G, c.capacity, n.Dv, 1),
        sink_k(n.B, n.G, n.S, n.D, 1),
        sink_v(n.B, n.G, n.S, n.Dv, 3),
        q_sink(n.B, n.H, n.T, n.D, 1),
        dout(n.B, n.H, n.T, n.Dv, 1) {
    q.FillNormal(rng);
    k.FillNormal(rng, c.key_scale);
    v.FillNormal(rng);
    q_sink.FillNormal(rng);
    dout.FillNormal(rng);
    for (int64_t i = 0; i < n.P; ++i) {
      FillToken(past_k, (c.start + i) % c.capacity, rng, c.key_scale);
      FillToken(past_v, (c.start + i) % c.capacity, rng, 1.0);
    }
    // Only the sinks that some query sees; the others stay poisoned.
    for (int64_t s = 0; s < std::min(n.S, n.position + n.T - n.W); ++s) {
      FillToken(sink_k, s, rng, c.key_scale);
      FillToken(sink_v, s, rng, 1.0);
    }
  }

  static void FillToken(RowBuffer& x, int64_t token, Rng& rng, double scale) {
    for (int64_t b = 0; b < x.B; ++b) {
      for (int64_t h = 0; h < x.H; ++h) {
        for (int64_t d = 0; d < x.D; ++d) x.Row(b, h, token)[d] = static_cast<float>(rng.Normal() * scale);
      }
    }
  }

  WindowAttentionArgs<float> Args(RowBuffer& out, RowBuffer& lse) const {
    return {.shape = n,
            .q = q.crows(),
            .k = k.crows(),
            .v = v.crows(),
            .past = {past_k.crows(), past_v.crows(), test_case.capacity, test_case.start},
            .sink_k = sink_k.crows(),
            .sink_v = sink_v.crows(),
            .q_sink = test_case.q_sink ? q_sink.crows() : Rows<const float>(),
            .out = out.rows(),
            .lse = lse.rows()};
  }

  // The largest possible |logit|.
  double LogitBound() const {
    const double query = std::max(MaxRowNorm(q), MaxRowNorm(q_sink));
    const double key = std::max({MaxRowNorm(k), MaxRowNorm(past_k), MaxRowNorm(sink_k)});
    return query * key / std::sqrt(static_cast<double>(n.D));
  }
  double MaxValueElement() const { return std::max({MaxAbsRows(v), MaxAbsRows(past_v), MaxAbsRows(sink_v)}); }
  double MaxKey() const { return std::max({MaxRowNorm(k), MaxRowNorm(past_k), MaxRowNorm(sink_k)}); }
  double MaxValue() const { return std::max({MaxRowNorm(v), MaxRowNorm(past_v), MaxRowNorm(sink_v)}); }

  WindowCase test_case;
  WindowAttentionShape n;
  RowBuffer q, k, v, past_k, past_v, sink_k, sink_v, q_sink, dout;
};

// The relative error of a softmax weight, in units of eps: n roundings of random sign add up to about sqrt(n)/2, so a
// logit errs by sqrt(D)/2 times its bound, which exp makes relative, and once more in the maximum or lse it is taken
// from (there also the rounding of the lse itself); the sum over the visible keys and exp add sqrt(keys)/2 and 2. Times
// 2 for the tails.
inline double WeightUlps(const WindowAttentionShape& n, double logit_bound) {
  const double keys = static_cast<double>(n.S + std::min(n.W, n.P + n.T));
  return 2 * ((std::sqrt(static_cast<double>(n.D)) + 1) * logit_bound + std::sqrt(keys) / 2 + 2);
}

}  // namespace tensorcache::testing
