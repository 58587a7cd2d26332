#include "core/flops.h"

#include <algorithm>

namespace tensorcache {
namespace {

// Pairs (query, key) of one sequence of T tokens that see each other.
double VisiblePairs(const CacheConfig& cache, double T) {
  if (cache.method == CacheMethod::kFull) return T * (T + 1) / 2;
  const double W = std::min<double>(static_cast<double>(cache.window), T);
  double pairs = W * (W + 1) / 2 + (T - W) * W;
  if (cache.method == CacheMethod::kStreamingLlm) pairs += (T - W) * static_cast<double>(cache.sinks);
  return pairs;
}

// Reads and writes of all memories of a layer, per token.
double MemoryFlops(const ModelConfig& config) {
  const auto H = static_cast<double>(config.num_attention_heads), G = static_cast<double>(config.num_key_value_heads);
  const auto D = static_cast<double>(config.HeadDim());
  const TensorCacheConfig& tc = config.cache.tensor_cache;
  const bool infini = config.cache.method == CacheMethod::kInfini;
  const double memories = infini ? 1 : static_cast<double>(tc.slots * (tc.two_timescale ? 2 : 1));
  const bool delta = infini ? config.cache.infini.delta : tc.rule == WriteRule::kDelta;
  const bool twice = !infini && tc.rule == WriteRule::kWedge;
  const double writes = 2 * G * (delta || twice ? 2 : 1);
  return memories * D * D * (2 * H + writes);
}

}  // namespace

double ForwardFlops(const ModelConfig& config, const StepSize& size) {
  const auto E = static_cast<double>(config.hidden_size), F = static_cast<double>(config.intermediate_size);
  const auto H = static_cast<double>(config.num_attention_heads), G = static_cast<double>(config.num_key_value_heads);
  const auto D = static_cast<double>(config.HeadDim()), T = static_cast<double>(size.tokens);
  const double tokens = T * static_cast<double>(size.rows);
  const auto past = static_cast<double>(size.past);
  const double pairs = VisiblePairs(config.cache, past + T) - VisiblePairs(config.cache, past);
  double forward = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const bool memory = config.HasTensorCache(layer);
    const double weights = E * (H + 2 * G) * D + E * H * D * (memory ? 2 : 1) + E * F * (config.gated_mlp ? 3 : 2);
    forward += 2 * weights * tokens;
    forward += 4 * D * H * pairs * static_cast<double>(size.rows);
    if (memory || config.cache.method == CacheMethod::kInfini) forward += MemoryFlops(config) * tokens;
  }
  forward += 2 * E * static_cast<double>(config.vocab_size) * static_cast<double>(size.supervised);
  return forward;
}

double TrainingFlops(const ModelConfig& config, const StepSize& size) { return 3 * ForwardFlops(config, size); }

}  // namespace tensorcache
