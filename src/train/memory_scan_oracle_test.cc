// memory_scan against the same recurrence written in LibTorch and differentiated by its autograd: a specification that
// shares no code with ours.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/memory_scan/memory_scan_testing.h"
#include "tensorcache/kernels/memory_scan.h"
#include "train/torch.h"

namespace tensorcache {
namespace {

using testing::RandomScanProblem;
using testing::RowBuffer;
using testing::ScanGradients;
using testing::ScanProblem;

// (B, T, heads, D) as RowBuffer stores it -> (B, heads, T, D), double, a leaf.
at::Tensor Leaf(const RowBuffer& array, int64_t B, int64_t heads, int64_t T, int64_t D) {
  const std::vector<float> values = array.Values();
  auto t = at::from_blob(const_cast<float*>(values.data()), {B, T, heads, D}).to(at::kDouble);
  return t.transpose(1, 2).contiguous().requires_grad_(true);
}

struct Oracle {
  at::Tensor q, k, v, g, b, A0, reads, A;
};

// One head group after the other, one token after the other; ring empty, lag as given.
Oracle Recurrence(const ScanProblem<float>& p) {
  const MemoryScanShape& s = p.shape;
  Oracle o;
  o.q = Leaf(p.q, s.B, s.H, s.T, s.Dk);
  o.k = Leaf(p.k, s.B, s.G, s.T, s.Dk);
  o.v = Leaf(p.v, s.B, s.G, s.T, s.Dv);
  o.g = Leaf(p.g, s.B, s.G, s.T, 1);
  o.b = Leaf(p.b, s.B, s.G, s.T, 1);
  o.A0 = Leaf(p.initial, s.B, s.G, s.Dk, s.Dv);
  at::Tensor A = o.A0;
  std::vector<at::Tensor> reads;
  for (int64_t t = 0; t < s.T; ++t) {
    if (t >= s.lag) {
      const auto k = o.k.select(2, t - s.lag).unsqueeze(2), v = o.v.select(2, t - s.lag).unsqueeze(2);  // (B, G, 1, D)
      const auto decay = o.g.select(2, t - s.lag).unsqueeze(2).exp(), strength = o.b.select(2, t - s.lag).unsqueeze(2);
      auto write = k.transpose(2, 3).matmul(v);
      if (s.rule == WriteRule::kDelta) write = k.transpose(2, 3).matmul(v - k.matmul(A));
      if (s.rule == WriteRule::kGatedDelta) write = k.transpose(2, 3).matmul(v - k.matmul(decay * A));
      if (s.rule == WriteRule::kWedge) write = write - write.transpose(2, 3);
      A = decay * A + strength * write;
    }
    const auto shared = A.repeat_interleave(s.H / s.G, 1);  // (B, H, Dk, Dv)
    reads.push_back(o.q.select(2, t).unsqueeze(2).matmul(shared));
  }
  o.reads = at::cat(reads, 2);
  o.A = A;
  return o;
}

void ExpectClose(const char* what, const RowBuffer& actual, const at::Tensor& expected, int64_t T, int64_t D) {
  const int64_t B = expected.size(0), heads = expected.size(1);
  const auto a = Leaf(actual, B, heads, T, D).detach();
  const double scale = expected.abs().max().item<double>() + 1;
  EXPECT_LT((a - expected).abs().max().item<double>(), 1e-5 * scale) << what;
}

TEST(MemoryScanOracle, ForwardAndBackwardEqualAutograd) {
  at::set_num_threads(1);  // thousands of tiny operations
  for (const WriteRule rule : testing::AllWriteRules()) {
    for (const int64_t lag : {0, 7}) {
      SCOPED_TRACE(testing::RuleName(rule) + " lag " + std::to_string(lag));
      const MemoryScanShape s{.B = 2,
                              .H = 4,
                              .G = 2,
                              .T = 83,
                              .Dk = 24,
                              .Dv = rule == WriteRule::kWedge ? 24 : 25,
                              .lag = lag,
                              .rule = rule};
      const ScanProblem<float> p = RandomScanProblem(s, {}, 17);
      const Oracle o = Recurrence(p);
      const auto d_reads = Leaf(p.d_reads, s.B, s.H, s.T, s.Dv).detach();
      const auto d_final = Leaf(p.d_final, s.B, s.G, s.Dk, s.Dv).detach();
      ((o.reads * d_reads).sum() + (o.A * d_final).sum()).backward();

      RowBuffer reads(s.B, s.H, s.T, s.Dv, 0), final_state(s.B, s.G, s.Dk, s.Dv, 0);
      std::vector<float> saved(static_cast<size_t>(MemoryScanSavedFloats(s)));
      std::vector<float> scratch(
          static_cast<size_t>(std::max(MemoryScanScratchFloats(s), MemoryScanBackwardScratchFloats(s))));
      MemoryScanForwardArgs<float> forward = p.Forward();
      forward.reads = reads.rows();
      forward.final_state = final_state.rows();
      forward.saved = saved.data();
      ASSERT_TRUE(MemoryScanForward(forward, 0, s.B * s.G, scratch.data()).ok());
      ExpectClose("reads", reads, o.reads.detach(), s.T, s.Dv);
      ExpectClose("final state", final_state, o.A.detach(), s.Dk, s.Dv);

      ScanGradients<float> gradients(s);
      MemoryScanBackwardArgs<float> backward = p.Backward();
      backward.saved = saved.data();
      gradients.Attach(&backward);
      ASSERT_TRUE(MemoryScanBackward(backward, 0, s.B * s.G, scratch.data()).ok());
      ExpectClose("d_q", gradients.q, o.q.grad(), s.T, s.Dk);
      ExpectClose("d_k", gradients.k, o.k.grad(), s.T, s.Dk);
      ExpectClose("d_v", gradients.v, o.v.grad(), s.T, s.Dv);
      ExpectClose("d_log_decay", gradients.g, o.g.grad(), s.T, 1);
      ExpectClose("d_write_strength", gradients.b, o.b.grad(), s.T, 1);
      ExpectClose("d_initial", gradients.initial, o.A0.grad(), s.Dk, s.Dv);
    }
  }
}

}  // namespace
}  // namespace tensorcache
