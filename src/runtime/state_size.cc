#include "runtime/state_size.h"

namespace tensorcache::runtime {

TwoLevelCacheConfig CacheConfigOf(const ModelConfig& config, RingType ring) {
  return {.layers = config.num_hidden_layers,
          .query_heads = config.num_attention_heads,
          .kv_heads = config.num_key_value_heads,
          .head_dim = config.HeadDim(),
          .cache = config.cache,
          .rope = {.enabled = config.position_embedding == PositionKind::kRope,
                   .theta = config.rope_theta,
                   .ntk_factor = config.rope_ntk_factor,
                   .scaling = config.rope_scaling,
                   .pairing = config.rope_pairing},
          .ring = ring};
}

void AddLayerBytes(const TwoLevelCacheConfig& config, std::span<const methods::StateArray> arrays, int64_t tokens,
                   StateBytes& bytes) {
  const int64_t kept = methods::MethodOf(config.cache).KeepsEverything() ? tokens : config.cache.window;
  bytes.window += 2 * config.kv_heads * kept * config.head_dim * RingBytes(config.ring);
  for (const methods::StateArray& array : arrays) {
    int64_t& of_kind = array.kind == methods::StateArray::Kind::kSinks ? bytes.sinks : bytes.memory;
    of_kind += config.kv_heads * array.size() * static_cast<int64_t>(sizeof(float));
  }
}

StateBytes StateBytesAfter(const TwoLevelCacheConfig& config, int64_t tokens) {
  StateBytes bytes;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    AddLayerBytes(config, methods::MethodOf(config.cache).Arrays(methods::PlaceOf(config, layer)), tokens, bytes);
  }
  return bytes;
}

}  // namespace tensorcache::runtime
