#include "train/attention.h"

#include <algorithm>

namespace tensorcache::train {
namespace {

Heads Project(const AttentionParameters& p, const Tensor& x, bool plain, const ForwardContext& context) {
  const ModelConfig& config = context.config;
  const int64_t H = config.num_attention_heads, G = config.num_key_value_heads;
  const at::ScalarType dtype = context.options.dtype;
  const Tensor heads =
      ProjectRotary({.x = x,
                     .weight = As(p.QkvWeight(), dtype),
                     .bias = As(p.qkv_bias, dtype),
                     .head_dim = config.HeadDim(),
                     .rotated_heads = plain || config.position_embedding == PositionKind::kLearned ? 0 : H + G,
                     .table = context.rope()},
                    context.options.backend);
  if (plain) {
    const SplitHeads split = SplitAndRotate(heads, H, context.rope(), context.options.backend);
    return {.q = split.q,
            .k = split.k,
            .v = split.v,
            .plain_q = split.plain_q,
            .plain_k = split.plain_k,
            .plain_v = split.plain_v};
  }
  const std::vector<Tensor> parts = heads.split_with_sizes({H, G, G}, 2);
  return {.q = parts[0], .k = parts[1], .v = parts[2]};
}

// The last `keep` tokens of past (B, G, P, D) followed by block (B, T, G, D); 0 keeps all.
Tensor Ring(const Tensor& past, const Tensor& block, int64_t keep) {
  const int64_t T = block.size(1);
  const Tensor recent = block.transpose(1, 2);  // (B, G, T, D)
  if (keep > 0 && T >= keep) return recent.narrow(2, T - keep, keep).contiguous();
  if (!past.defined()) return recent.contiguous();
  const int64_t from_past = keep == 0 ? past.size(2) : std::min(past.size(2), keep - T);
  return at::cat({past.narrow(2, past.size(2) - from_past, from_past), recent}, 2);
}

// W; 0: no limit.
int64_t WindowOf(const CacheConfig& cache) { return methods::MethodOf(cache).KeepsEverything() ? 0 : cache.window; }

}  // namespace

Attended Attend(const LayerBlock& block, MethodState& state) {
  const CacheConfig& cache = block.place.cache;
  const TrainMethod& method = TrainMethodOf(cache);
  WindowAttentionInputs window{.q = block.heads.q,
                               .k = block.heads.k,
                               .v = block.heads.v,
                               .past_k = block.past_k,
                               .past_v = block.past_v,
                               .window = WindowOf(cache),
                               .position = block.context.position};
  method.AddSinks(block, state, window);
  Attended out{.local = WindowAttention(window, block.context.options.backend)};
  if (methods::MethodOf(cache).HasMemory(block.place)) out.reads = method.Remember(block, state);
  return out;
}

Tensor Attention(const AttentionParameters& p, const Tensor& x, int64_t layer, LayerState* state,
                 ForwardContext& context) {
  const methods::LayerPlace place = methods::PlaceOf(context.config, layer);
  const TrainMethod& method = TrainMethodOf(place.cache);
  LayerState next = state != nullptr ? *state : LayerState();
  const LayerBlock block{.place = place,
                         .parameters = p,
                         .context = context,
                         .x = x,
                         .heads = Project(p, x, method.NeedsPlainHeads(place), context),
                         .past_k = next.k,
                         .past_v = next.v};
  const Attended attended = Attend(block, next.of_method);
  const bool has_memory = attended.reads.defined();
  if (context.metrics != nullptr) {
    context.metrics->push_back(has_memory ? method.Metrics(block, next.of_method) : LayerMetrics());
  }
  if (state != nullptr) {
    const int64_t keep = WindowOf(place.cache);
    next.k = Ring(block.past_k, block.heads.k, keep);
    next.v = Ring(block.past_v, block.heads.v, keep);
    *state = std::move(next);
  }
  return has_memory ? method.Output(block, attended.local, attended.reads) : OutProjection(p, attended.local);
}

}  // namespace tensorcache::train
