#include <fmt/format.h>

#include "core/config.h"
#include "methods/method.h"
#include "tensorcache/config.h"
#include "tensorcache/kernels/rope.h"

namespace tensorcache {

Status methods::CheckHeads(const NamedSize& layers, const NamedSize& query_heads, const NamedSize& kv_heads) {
  TC_RETURN_IF_ERROR(CheckPositive(layers.name, layers.size, 4096));
  TC_RETURN_IF_ERROR(CheckPositive(query_heads.name, query_heads.size, 65536));
  TC_RETURN_IF_ERROR(CheckPositive(kv_heads.name, kv_heads.size, 65536));
  if (query_heads.size % kv_heads.size == 0) return OkStatus();
  return InvalidArgument(fmt::format("{} is {} and {} {}; the first must be a multiple of the second", query_heads.name,
                                     query_heads.size, kv_heads.name, kv_heads.size));
}

Status methods::CheckHeadDim(int64_t head_dim) {
  if (head_dim >= 2 && head_dim <= kMaxRotaryDims && head_dim % 2 == 0) return OkStatus();
  return InvalidArgument(
      fmt::format("head_dim is {}; rotary embedding needs an even width of 2 to {}", head_dim, kMaxRotaryDims));
}

namespace {

// There is nothing to turn.
Status ValidateLearnedPositions(const ModelConfig& config) {
  if (config.rope_ntk_factor != 1 || config.rope_scaling.rope_type != RopeScalingKind::kNone) {
    return InvalidArgument("position_embedding learned has no rotary embedding to scale; leave rope_* as they are");
  }
  const methods::Method* method = methods::FindMethod(config.cache.method);
  return method == nullptr ? OkStatus() : method->ValidateLearnedPositions();
}

}  // namespace

Status ValidateRopeScaling(const RopeScaling& scaling) {
  TC_RETURN_IF_ERROR(CheckNames(scaling));
  if (scaling.rope_type == RopeScalingKind::kNone) return OkStatus();
  TC_RETURN_IF_ERROR(CheckRange("rope_scaling.factor", scaling.factor, 1, 1e6));
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

Status ValidateModelConfig(const ModelConfig& config) {
  constexpr int64_t kMax = int64_t{1} << 24;
  TC_RETURN_IF_ERROR(CheckNames(config));
  TC_RETURN_IF_ERROR(CheckPositive("vocab_size", config.vocab_size, kMax));
  TC_RETURN_IF_ERROR(CheckPositive("hidden_size", config.hidden_size, kMax));
  TC_RETURN_IF_ERROR(CheckPositive("intermediate_size", config.intermediate_size, kMax));
  TC_RETURN_IF_ERROR(CheckPositive("max_position_embeddings", config.max_position_embeddings, int64_t{1} << 40));
  TC_RETURN_IF_ERROR(methods::CheckHeads({"num_hidden_layers", config.num_hidden_layers},
                                         {"num_attention_heads", config.num_attention_heads},
                                         {"num_key_value_heads", config.num_key_value_heads}));
  if (config.head_dim == 0 && config.hidden_size % config.num_attention_heads != 0) {
    return InvalidArgument(
        fmt::format("hidden_size is {} and num_attention_heads {}; give head_dim, or make the first "
                    "a multiple of the second",
                    config.hidden_size, config.num_attention_heads));
  }
  TC_RETURN_IF_ERROR(methods::CheckHeadDim(config.HeadDim()));
  TC_RETURN_IF_ERROR(CheckInside("norm_eps", config.norm_eps, 0, 1));
  TC_RETURN_IF_ERROR(CheckInside("rope_theta", config.rope_theta, 1, 1e12));
  TC_RETURN_IF_ERROR(CheckRange("rope_ntk_factor", config.rope_ntk_factor, 1, 1e6));
  if (config.rope_ntk_factor > 1 && config.HeadDim() < 4) {
    return InvalidArgument("rope_ntk_factor above 1 needs a head_dim of at least 4");
  }
  TC_RETURN_IF_ERROR(ValidateRopeScaling(config.rope_scaling));
  if (config.position_embedding == PositionKind::kLearned) TC_RETURN_IF_ERROR(ValidateLearnedPositions(config));
  return ValidateCacheConfig(config.cache, config.num_hidden_layers);
}

Status ValidateCacheConfig(const CacheConfig& cache, int64_t layers) {
  // Those of other methods, too: a state file names them all.
  TC_RETURN_IF_ERROR(CheckNames(cache));
  return methods::MethodOf(cache).Validate(cache, layers);
}

}  // namespace tensorcache
