// Infini-attention's memory of every token; src/methods/infini/infini.cc has the formulas, and how the delta rule is one of
// memory_scan's.
#include "train/methods/train_method.h"
#include "train/ops/memory_scan.h"

namespace tensorcache::train {
namespace {

Tensor Feature(const Tensor& x) {  // s(x)
  return at::elu(x.scalar_type() == at::kDouble ? x : x.to(at::kFloat)) + 1;
}

// State: memory (B, G, D, D) and normalizer (B, G, D), float32.
class Infini : public TrainMethod {
 public:
  bool NeedsPlainHeads(const methods::LayerPlace& place) const override { return !place.cache.infini.memory_rope; }

  Tensor Remember(const LayerBlock& block, MethodState& state) const override {
    const InfiniConfig& config = block.place.cache.infini;
    const Heads& heads = block.heads;
    const Tensor q = Feature(config.memory_rope ? heads.q : heads.plain_q);
    const Tensor k = Feature(config.memory_rope ? heads.k : heads.plain_k);
    const Tensor v = heads.v.to(k.scalar_type());
    const int64_t B = k.size(0), T = k.size(1), G = k.size(2), D = k.size(3), R = q.size(2) / G;
    Tensor &memory = state["memory"], &normalizer = state["normalizer"];
    const Tensor z0 = normalizer.defined() ? normalizer : at::zeros({B, G, D}, k.options());
    const Tensor z = z0.unsqueeze(1) + k.cumsum(1);  // (B, T, G, D)

    MemoryScanInputs scan{.q = q,
                          .k = k,
                          .v = v,
                          .log_decay = at::zeros({G}, k.options()),
                          .write_strength = at::ones({G}, k.options()),
                          .initial = memory,
                          .lag = 0};
    if (config.delta) {
      const Tensor before = at::cat({z0.unsqueeze(1), z.narrow(1, 0, T - 1)}, 1);
      const Tensor known =
          (k * before).sum(-1, true);  // c (B, T, G, 1), 0 only for the first token: nothing is known then
      const Tensor root = at::where(known > 0, known, at::ones_like(known)).sqrt();
      scan.k = k / root;
      scan.v = v * root;
      scan.rule = WriteRule::kDelta;
    }
    const MemoryScanOutputs out = MemoryScan(scan, block.context.options.backend);
    memory = out.final_state;
    normalizer = z.select(1, T - 1);
    const Tensor norm = (q.view({B, T, G, R, D}) * z.unsqueeze(3)).sum(-1).view({B, T, G * R, 1});
    return (out.reads / norm).to(heads.q.scalar_type());
  }

  Tensor Output(const LayerBlock& block, const Tensor& local, const Tensor& reads) const override {
    return OutProjection(block.parameters, at::lerp(local, reads, Gate(block).to(local.scalar_type())));
  }

  LayerMetrics Metrics(const LayerBlock& block, const MethodState& state) const override {
    return {.learned = {{"gate", Values(Gate(block))}}, .memory_norm = RootMeanSquareNorm(state.at("memory"))};
  }

 private:
  static Tensor Gate(const LayerBlock& block) {  // (H, 1)
    return block.parameters.Get("gate").sigmoid().unsqueeze(-1);
  }
};

}  // namespace

const TrainMethod& InfiniTrainMethod() {
  static const Infini method;
  return method;
}

}  // namespace tensorcache::train
