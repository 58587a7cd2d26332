#include "train/attention.h"

#include <algorithm>

#include "train/memory.h"
#include "train/ops/window_attention.h"

namespace tensorcache::train {
namespace {

// Queries, keys and values of a block; `plain_*` before rotary embedding, where the method needs them.
struct Projections {
  Tensor q, plain_q;  // (B, T, H, D)
  Tensor k, plain_k;  // (B, T, G, D)
  Tensor v;           // (B, T, G, D)
};

bool NeedsPlainHeads(const ModelConfig& config, bool has_memory) {
  switch (config.cache.method) {
    case CacheMethod::kStreamingLlm: return true;
    case CacheMethod::kInfini: return !config.cache.infini.memory_rope;
    case CacheMethod::kTensorCache: return has_memory && !config.cache.tensor_cache.memory_rope;
    default: return false;
  }
}

Projections Project(const AttentionParameters& p, const Tensor& x, bool plain, const ForwardContext& context) {
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
  const std::vector<Tensor> parts = heads.split_with_sizes({H, G, G}, 2);
  Projections out{.q = parts[0], .k = parts[1], .v = parts[2]};
  if (plain) {
    out.plain_q = out.q;
    out.plain_k = out.k;
    out.q = Rope(out.plain_q, context.rope(), false, context.options.backend);
    out.k = Rope(out.plain_k, context.rope(), false, context.options.backend);
  }
  return out;
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

// The sinks known after this block: those of the state and those of the block that are among the first S tokens.
void AddSinks(const Projections& block, const ForwardContext& context, LayerState& state) {
  const int64_t first = context.position;
  const int64_t added = std::min(context.config.cache.sinks - first, context.tokens);
  if (added <= 0) return;
  const Tensor k =
      Rope(block.plain_k.narrow(1, 0, added), context.SinkKeyRope(first, added), false, context.options.backend);
  state.sink_k = Ring(state.sink_k, k, 0);
  state.sink_v = Ring(state.sink_v, block.v.narrow(1, 0, added), 0);
}

// Attention over the window (and the sinks): (B, T, H, D).
Tensor LocalAttention(const Projections& block, const LayerState& state, const ForwardContext& context) {
  const CacheConfig& cache = context.config.cache;
  WindowAttentionInputs inputs{.q = block.q,
                               .k = block.k,
                               .v = block.v,
                               .past_k = state.k,
                               .past_v = state.v,
                               .window = cache.method == CacheMethod::kFull ? 0 : cache.window,
                               .position = context.position};
  // Sinks that are still inside the window are seen there.
  if (cache.method == CacheMethod::kStreamingLlm && context.position + context.tokens > cache.window) {
    inputs.sink_k = state.sink_k;
    inputs.sink_v = state.sink_v;
    inputs.q_sink = Rope(block.plain_q, context.SinkQueryRope(), false, context.options.backend);
  }
  return WindowAttention(inputs, context.options.backend);
}

MemoryBlock MakeMemoryBlock(const Projections& block, const LayerState& state, bool rotated,
                            const ForwardContext& context) {
  MemoryBlock memory{.q = rotated ? block.q : block.plain_q,
                     .k = rotated ? block.k : block.plain_k,
                     .v = block.v,
                     .past_k = state.k,
                     .past_v = state.v,
                     .initial = state.memory,
                     .normalizer = state.normalizer};
  if (!rotated && state.k.defined()) {
    const Tensor by_token = state.k.transpose(1, 2);
    memory.past_k = Rope(by_token, context.PastRope(state.k.size(2)), true, context.options.backend).transpose(1, 2);
  }
  return memory;
}

Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {}) {
  return at::linear(x, As(weight, x.scalar_type()), As(bias, x.scalar_type()));
}

double RootMeanSquareNorm(const Tensor& memory) {  // (B, M, D, Dv)
  const at::NoGradGuard no_grad;
  return std::sqrt(memory.square().sum().item<double>() / static_cast<double>(std::max<int64_t>(memory.size(0), 1)));
}

std::vector<double> Values(const Tensor& tensor) {
  const Tensor flat = tensor.detach().to(at::kCPU, at::kDouble).flatten().contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

Tensor TensorCacheOutput(const AttentionParameters& p, const Tensor& x, const Tensor& local, MemoryResult memory,
                         ForwardContext& context) {
  const bool per_token = p.gate_weight.defined();
  Tensor gate = p.gate;
  if (per_token) gate = at::matmul(x.to(at::kFloat), p.gate_weight).unsqueeze(-1) + p.gate;  // (B, T, 1)
  gate = gate.sigmoid();
  if (context.metrics != nullptr) {
    LayerMetrics& metrics = context.metrics->back();
    metrics.gate = {gate.mean().item<double>()};
    metrics.lambda = Values(p.lambda_logit.sigmoid());
    metrics.eta = Values(p.eta_logit.sigmoid());
    metrics.memory_norm = RootMeanSquareNorm(memory.memory);
  }
  const Tensor reads = memory.reads.flatten(2);
  const Tensor remembered = per_token ? Linear(reads * gate.to(reads.scalar_type()), p.memory_out_weight)
                                      : Linear(reads, gate * p.memory_out_weight);
  return Linear(local.flatten(2), p.OutWeight(), p.out_bias) + remembered;
}

Tensor InfiniOutput(const AttentionParameters& p, const Tensor& local, const MemoryResult& memory,
                    ForwardContext& context) {
  const Tensor gate = p.infini_gate.sigmoid().unsqueeze(-1);  // (H, 1)
  if (context.metrics != nullptr) {
    context.metrics->back().gate = Values(gate);
    context.metrics->back().memory_norm = RootMeanSquareNorm(memory.memory);
  }
  const Tensor mixed = at::lerp(local, memory.reads, gate.to(local.scalar_type()));
  return Linear(mixed.flatten(2), p.OutWeight(), p.out_bias);
}

}  // namespace

Tensor Attention(const AttentionParameters& p, const Tensor& x, LayerState* state, ForwardContext& context) {
  const CacheConfig& cache = context.config.cache;
  const bool has_memory = p.memory_out_weight.defined();
  if (context.metrics != nullptr) context.metrics->emplace_back();
  LayerState before = state != nullptr ? *state : LayerState();
  const Projections block = Project(p, x, NeedsPlainHeads(context.config, has_memory), context);
  if (cache.method == CacheMethod::kStreamingLlm) AddSinks(block, context, before);
  const Tensor local = LocalAttention(block, before, context);

  MemoryResult memory;
  if (has_memory) {
    memory = TensorCacheMemory(p, MakeMemoryBlock(block, before, cache.tensor_cache.memory_rope, context), context);
  } else if (cache.method == CacheMethod::kInfini) {
    memory = InfiniMemory(MakeMemoryBlock(block, before, cache.infini.memory_rope, context), context);
  }
  if (state != nullptr) {
    const int64_t keep = cache.method == CacheMethod::kFull ? 0 : cache.window;
    *state = {.k = Ring(before.k, block.k, keep),
              .v = Ring(before.v, block.v, keep),
              .sink_k = before.sink_k,
              .sink_v = before.sink_v,
              .memory = memory.memory,
              .normalizer = memory.normalizer};
  }
  if (has_memory) return TensorCacheOutput(p, x, local, std::move(memory), context);
  if (cache.method == CacheMethod::kInfini) return InfiniOutput(p, local, memory, context);
  return Linear(local.flatten(2), p.OutWeight(), p.out_bias);
}

}  // namespace tensorcache::train
