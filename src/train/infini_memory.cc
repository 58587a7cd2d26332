// Infini-attention's memory, with s(x) = elu(x) + 1:
//
//   z_i = z_{i-1} + s(k_i)                                          read: s(q_t) M_t / (s(q_t) z_t)
//   linear  M_i = M_{i-1} + s(k_i)^T v_i
//   delta   M_i = M_{i-1} + s(k_i)^T (v_i - s(k_i) M_{i-1} / c_i),  c_i = s(k_i) z_{i-1}
//
// The delta rule is memory_scan's with the key s(k)/sqrt(c) and the value sqrt(c) v:
// (s(k)/sqrt(c))^T (sqrt(c) v - (s(k)/sqrt(c)) M) = s(k)^T (v - s(k) M / c).
#include "train/memory.h"
#include "train/ops/memory_scan.h"

namespace tensorcache::train {
namespace {

Tensor Feature(const Tensor& x) { return at::elu(x) + 1; }

}  // namespace

MemoryResult InfiniMemory(const MemoryBlock& block, const ForwardContext& context) {
  const auto wide = [](const Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); };
  const Tensor q = Feature(wide(block.q)), k = Feature(wide(block.k)), v = wide(block.v);
  const int64_t B = k.size(0), T = k.size(1), G = k.size(2), D = k.size(3), R = q.size(2) / G;
  const Tensor z0 = block.normalizer.defined() ? block.normalizer : at::zeros({B, G, D}, k.options());
  const Tensor z = z0.unsqueeze(1) + k.cumsum(1);  // (B, T, G, D)

  MemoryScanInputs scan{.q = q,
                        .k = k,
                        .v = v,
                        .log_decay = at::zeros({G}, k.options()),
                        .write_strength = at::ones({G}, k.options()),
                        .initial = block.initial,
                        .lag = 0};
  if (context.config.cache.infini.delta) {
    const Tensor before = at::cat({z0.unsqueeze(1), z.narrow(1, 0, T - 1)}, 1);
    const Tensor known =
        (k * before).sum(-1, true);  // c (B, T, G, 1), 0 only for the first token: nothing is known then
    const Tensor root = at::where(known > 0, known, at::ones_like(known)).sqrt();
    scan.k = k / root;
    scan.v = v * root;
    scan.rule = WriteRule::kDelta;
  }
  const MemoryScanOutputs out = MemoryScan(scan, context.options.backend);
  const Tensor norm = (q.view({B, T, G, R, D}) * z.unsqueeze(3)).sum(-1).view({B, T, G * R, 1});
  return {.reads = (out.reads / norm).to(block.q.scalar_type()),
          .memory = out.final_state,
          .normalizer = z.select(1, T - 1)};
}

}  // namespace tensorcache::train
