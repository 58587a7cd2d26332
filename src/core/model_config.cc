#include <fmt/format.h>

#include "tensorcache/config.h"

namespace tensorcache {
namespace {

Status CheckPositive(std::string_view name, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return OkStatus();
  return InvalidArgument(fmt::format("{} is {}; it must be 1 to {}", name, value, max));
}

Status CheckInside(std::string_view name, double value, double low, double high) {
  if (value > low && value < high) return OkStatus();
  return InvalidArgument(fmt::format("{} is {}; it must lie between {} and {}", name, value, low, high));
}

Status ValidateTensorCache(const TensorCacheConfig& tc, int64_t layers) {
  const std::string_view at = "cache.tensor_cache.";
  TC_RETURN_IF_ERROR(CheckInside(fmt::format("{}lambda_init", at), tc.lambda_init, 0, 1));
  TC_RETURN_IF_ERROR(CheckInside(fmt::format("{}eta_init", at), tc.eta_init, 0, 1));
  TC_RETURN_IF_ERROR(CheckInside(fmt::format("{}gate_init", at), tc.gate_init, -100, 100));
  TC_RETURN_IF_ERROR(CheckInside(fmt::format("{}alpha_init", at), tc.alpha_init, -100, 100));
  TC_RETURN_IF_ERROR(CheckInside(fmt::format("{}value_scale", at), tc.value_scale, 0, 1e6));
  TC_RETURN_IF_ERROR(CheckInside(fmt::format("{}read_floor", at), tc.read_floor, 0, 1e6));
  TC_RETURN_IF_ERROR(CheckPositive(fmt::format("{}slots", at), tc.slots, 1024));
  TC_RETURN_IF_ERROR(CheckPositive(fmt::format("{}chunk", at), tc.chunk, int64_t{1} << 20));
  if (tc.two_timescale) {
    TC_RETURN_IF_ERROR(CheckInside(fmt::format("{}slow_lambda_init", at), tc.slow_lambda_init, 0, 1));
    TC_RETURN_IF_ERROR(CheckInside(fmt::format("{}slow_eta_init", at), tc.slow_eta_init, 0, 1));
  }
  if (tc.top_k < 1 || tc.top_k > tc.slots) {
    return InvalidArgument(fmt::format("{}top_k is {}, of {} slots; it must be 1 to slots", at, tc.top_k, tc.slots));
  }
  if (tc.slots > 1) {
    TC_RETURN_IF_ERROR(CheckInside(fmt::format("{}router_temperature", at), tc.router_temperature, 0, 1e6));
    if (tc.write == MemoryWrite::kChunkMean) {
      return InvalidArgument(fmt::format(
          "{}write chunk_mean has one write per chunk, but slots route each token; use another write mode", at));
    }
    if (tc.write == MemoryWrite::kChunkStart && tc.route_by == RouteBy::kQuery) {
      return InvalidArgument(fmt::format(
          "{}route_by query means the query of the step that evicts a token; write chunk_start evicts none. Use "
          "route_by key, or write evict or insert",
          at));
    }
  }
  if (tc.rule == WriteRule::kWedge && tc.normalize_reads) {
    return InvalidArgument(fmt::format(
        "{}normalize_reads needs a value column of ones, but rule wedge swaps keys and values; use outer or delta",
        at));
  }
  if (tc.layers == MemoryLayers::kTop && (tc.top_layers < 1 || tc.top_layers > layers)) {
    return InvalidArgument(
        fmt::format("{}top_layers is {}, of {} layers; it must be 1 to num_hidden_layers", at, tc.top_layers, layers));
  }
  return OkStatus();
}

Status ValidateRopeScaling(const RopeScaling& scaling) {
  if (scaling.rope_type == RopeScalingKind::kNone) return OkStatus();
  if (!(scaling.factor >= 1 && scaling.factor <= 1e6)) {
    return InvalidArgument(fmt::format("rope_scaling.factor is {}; it must be 1 to 1e6", scaling.factor));
  }
  if (scaling.rope_type != RopeScalingKind::kLlama3) return OkStatus();
  if (!(scaling.low_freq_factor > 0 && scaling.high_freq_factor > scaling.low_freq_factor &&
        scaling.high_freq_factor <= 1e6)) {
    return InvalidArgument(
        fmt::format("rope_scaling.low_freq_factor is {} and high_freq_factor {}; they must be positive, the second one "
                    "larger",
                    scaling.low_freq_factor, scaling.high_freq_factor));
  }
  return CheckInside("rope_scaling.original_max_position_embeddings", scaling.original_max_position_embeddings, 0,
                     1e12);
}

// What turns keys and queries by their distance has nothing to turn.
Status ValidateLearnedPositions(const ModelConfig& config) {
  if (config.cache.method == CacheMethod::kStreamingLlm) {
    return InvalidArgument(
        "cache.method streaming_llm places tokens by their index in the cache, which learned positions cannot: they "
        "are "
        "part of each token; use window, or a model with rotary embedding");
  }
  if (config.rope_ntk_factor != 1 || config.rope_scaling.rope_type != RopeScalingKind::kNone) {
    return InvalidArgument("position_embedding learned has no rotary embedding to scale; leave rope_* as they are");
  }
  return OkStatus();
}

}  // namespace

Status ValidateModelConfig(const ModelConfig& config) {
  constexpr int64_t kMax = int64_t{1} << 24;
  TC_RETURN_IF_ERROR(CheckPositive("vocab_size", config.vocab_size, kMax));
  TC_RETURN_IF_ERROR(CheckPositive("hidden_size", config.hidden_size, kMax));
  TC_RETURN_IF_ERROR(CheckPositive("intermediate_size", config.intermediate_size, kMax));
  TC_RETURN_IF_ERROR(CheckPositive("num_hidden_layers", config.num_hidden_layers, 4096));
  TC_RETURN_IF_ERROR(CheckPositive("num_attention_heads", config.num_attention_heads, 65536));
  TC_RETURN_IF_ERROR(CheckPositive("num_key_value_heads", config.num_key_value_heads, 65536));
  TC_RETURN_IF_ERROR(CheckPositive("max_position_embeddings", config.max_position_embeddings, int64_t{1} << 40));
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    return InvalidArgument(
        fmt::format("num_attention_heads is {} and num_key_value_heads {}; the first must be a "
                    "multiple of the second",
                    config.num_attention_heads, config.num_key_value_heads));
  }
  if (config.head_dim == 0 && config.hidden_size % config.num_attention_heads != 0) {
    return InvalidArgument(
        fmt::format("hidden_size is {} and num_attention_heads {}; give head_dim, or make the first "
                    "a multiple of the second",
                    config.hidden_size, config.num_attention_heads));
  }
  const int64_t head_dim = config.HeadDim();
  if (head_dim < 2 || head_dim > 256 || head_dim % 2 != 0) {
    return InvalidArgument(fmt::format("head_dim is {}; rotary embedding needs an even width of 2 to 256", head_dim));
  }
  TC_RETURN_IF_ERROR(CheckInside("norm_eps", config.norm_eps, 0, 1));
  TC_RETURN_IF_ERROR(CheckInside("rope_theta", config.rope_theta, 1, 1e12));
  if (!(config.rope_ntk_factor >= 1 && config.rope_ntk_factor <= 1e6)) {
    return InvalidArgument(fmt::format("rope_ntk_factor is {}; it must be 1 to 1e6", config.rope_ntk_factor));
  }
  if (config.rope_ntk_factor > 1 && head_dim < 4) {
    return InvalidArgument("rope_ntk_factor above 1 needs a head_dim of at least 4");
  }
  TC_RETURN_IF_ERROR(ValidateRopeScaling(config.rope_scaling));
  if (config.position_embedding == PositionKind::kLearned) TC_RETURN_IF_ERROR(ValidateLearnedPositions(config));
  return ValidateCacheConfig(config.cache, config.num_hidden_layers);
}

Status ValidateCacheConfig(const CacheConfig& cache, int64_t layers) {
  if (cache.method != CacheMethod::kFull) {
    TC_RETURN_IF_ERROR(CheckPositive("cache.window", cache.window, int64_t{1} << 40));
  }
  if (cache.method == CacheMethod::kStreamingLlm) TC_RETURN_IF_ERROR(CheckPositive("cache.sinks", cache.sinks, 65536));
  if (cache.method == CacheMethod::kInfini) {
    TC_RETURN_IF_ERROR(CheckInside("cache.infini.gate_init", cache.infini.gate_init, -100, 100));
  }
  return cache.method == CacheMethod::kTensorCache ? ValidateTensorCache(cache.tensor_cache, layers) : OkStatus();
}

}  // namespace tensorcache
