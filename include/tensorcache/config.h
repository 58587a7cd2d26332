// What a model is: the content of a checkpoint's config.json, and of the same keys in a training config. Where a name
// is common on the model hubs (Llama's config.json), it is that name; the cache's own options are in one object, `cache`.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorcache/choices.h"
#include "tensorcache/status.h"
#include "tensorcache/tensor_cache_config.h"

namespace tensorcache {

// What a layer keeps of the past. The methods of src/methods beyond these have the numbers that follow, and a name alone.
enum class CacheMethod : int {
  kFull,          // every key and value: state grows with the text
  kWindow,        // the last W
  kStreamingLlm,  // the first S (sinks) and the last W, at their positions inside the cache
  kInfini,        // the last W, and Infini-attention's normalised memory of every token
  kTensorCache,   // the last W, and a memory of what the window evicted
};
// Of every method that there is.
std::vector<std::pair<CacheMethod, std::string_view>> EnumNames(CacheMethod);

enum class NormKind { kLayerNorm, kRmsNorm };
constexpr auto EnumNames(NormKind) {
  return std::to_array<std::pair<NormKind, std::string_view>>(
      {{NormKind::kLayerNorm, "layer_norm"}, {NormKind::kRmsNorm, "rms_norm"}});
}

struct InfiniConfig {
  bool delta = false;
  double gate_init = 0;
  bool memory_rope = true;

  template <class V>
  void Fields(V& v) {
    v("delta", delta, "write v minus what the memory already returns for k");
    v("gate_init", gate_init,
      "beta, each head's gate logit at the start of training: sigmoid(beta) memory + rest local");
    v("memory_rope", memory_rope, "false: the memory is addressed by keys and queries before rotary embedding");
  }
};

struct CacheConfig {
  CacheMethod method = CacheMethod::kTensorCache;
  int64_t window = 512;
  int64_t sinks = 4;
  InfiniConfig infini;
  TensorCacheConfig tensor_cache;

  template <class V>
  void Fields(V& v) {
    v("method", method, "what a layer keeps of the past");
    v("window", window, "W, the last keys and values, kept exactly (all methods but full)");
    v("sinks", sinks, "S, the first keys and values, kept by streaming_llm");
    v("infini", infini, "options of method infini");
    v("tensor_cache", tensor_cache, "options of method tensor_cache");
  }
};

struct ModelConfig {
  int64_t vocab_size = 256;
  int64_t hidden_size = 128;
  int64_t intermediate_size = 512;
  int64_t num_hidden_layers = 4;
  int64_t num_attention_heads = 4;
  int64_t num_key_value_heads = 4;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 1024;
  NormKind norm = NormKind::kLayerNorm;
  double norm_eps = 1e-5;
  Activation hidden_act = Activation::kGelu;
  bool gated_mlp = false;
  bool attention_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  PositionKind position_embedding = PositionKind::kRope;
  double rope_theta = 10000;
  RopePairing rope_pairing = RopePairing::kHalfSplit;
  double rope_ntk_factor = 1;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = true;
  CacheConfig cache;

  int64_t HeadDim() const { return head_dim > 0 ? head_dim : hidden_size / num_attention_heads; }

  template <class V>
  void Fields(V& v) {
    v("vocab_size", vocab_size, "tokens of the vocabulary; 0 in a training config: that of the data");
    v("hidden_size", hidden_size, "width of the residual stream");
    v("intermediate_size", intermediate_size, "width of the feed-forward layers");
    v("num_hidden_layers", num_hidden_layers, "layers");
    v("num_attention_heads", num_attention_heads, "H, query heads");
    v("num_key_value_heads", num_key_value_heads, "G, key/value heads; H is a multiple of it");
    v("head_dim", head_dim, "D, width of a head; 0: hidden_size / num_attention_heads");
    v("max_position_embeddings", max_position_embeddings, "tokens of a training sequence");
    v("norm", norm, "normalisation before each sub-layer and at the end");
    v("norm_eps", norm_eps, "epsilon of the normalisation");
    v("hidden_act", hidden_act, "activation of the feed-forward layers");
    v("gated_mlp", gated_mlp, "down(act(gate(x)) * up(x)) instead of down(act(up(x))); with silu this is SwiGLU");
    v("attention_bias", attention_bias, "biases on the q, k and v projections");
    v("output_bias", output_bias, "a bias on the attention's output projection");
    v("mlp_bias", mlp_bias, "biases on the feed-forward projections");
    v("position_embedding", position_embedding,
      "rope: rotated queries and keys; learned: a vector for each of max_position_embeddings positions, and none "
      "beyond");
    v("rope_theta", rope_theta, "base of the rotary embedding");
    v("rope_pairing", rope_pairing, "columns that rotary embedding turns together");
    v("rope_ntk_factor", rope_ntk_factor, "s, NTK-aware scaling for contexts s times max_position_embeddings");
    v("rope_scaling", rope_scaling, "stretched frequencies, of models whose context was lengthened");
    v("tie_word_embeddings", tie_word_embeddings, "the output projection is the token embedding");
    v("cache", cache, "what each layer keeps of the past");
  }
};

// Refuse sizes that do not fit together and options that contradict each other, with the reason.
Status ValidateModelConfig(const ModelConfig& config);
Status ValidateCacheConfig(const CacheConfig& cache, int64_t layers);
Status ValidateRopeScaling(const RopeScaling& scaling);

}  // namespace tensorcache
