// StreamingLLM: the first S tokens (sinks) are seen besides the window; see src/methods/streaming_llm.
#include "methods/streaming_llm/streaming_llm.h"

#include <algorithm>
#include <numeric>

#include "train/methods/train_method.h"

namespace tensorcache::train {
namespace {

// sinks (B, G, <= S, D), or undefined, and `block` (B, T, G, D) behind them.
Tensor Appended(const Tensor& sinks, const Tensor& block) {
  const Tensor added = block.transpose(1, 2);
  return sinks.defined() ? at::cat({sinks, added}, 2) : added.contiguous();
}

class StreamingLlm : public TrainMethod {
 public:
  bool NeedsPlainHeads(const methods::LayerPlace& /*place*/) const override { return true; }

  void AddSinks(const LayerBlock& block, MethodState& state, WindowAttentionInputs& window) const override {
    const ForwardContext& context = block.context;
    const CacheConfig& cache = block.place.cache;
    const Backend backend = context.options.backend;
    const int64_t added = std::min(cache.sinks - context.position, context.tokens);
    if (added > 0) {  // a sink's index in the cache is its position, wherever the sequence is taken to start
      std::vector<int64_t> indices(static_cast<size_t>(added));
      std::iota(indices.begin(), indices.end(), context.position);
      const Tensor k = Rope(block.heads.plain_k.narrow(1, 0, added), context.RopeAt(indices), false, backend);
      state["sink_k"] = Appended(state["sink_k"], k);
      state["sink_v"] = Appended(state["sink_v"], block.heads.v.narrow(1, 0, added));
    }
    // Sinks that are still inside the window are seen there.
    if (context.position + context.tokens <= cache.window) return;
    window.sink_k = state["sink_k"];
    window.sink_v = state["sink_v"];
    window.q_sink =
        Rope(block.heads.plain_q, context.RopeAt(methods::SinkQueryIndices(cache, context.position, context.tokens)),
             false, backend);
  }
};

}  // namespace

const TrainMethod& StreamingLlmTrainMethod() {
  static const StreamingLlm method;
  return method;
}

}  // namespace tensorcache::train
