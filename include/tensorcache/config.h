// What a model is: the content of a checkpoint's config.json, and of the same keys in a training config. Where a name
// is common on the model hubs (Llama's config.json), it is that name; the cache's own options are in one object, `cache`.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "tensorcache/choices.h"
#include "tensorcache/status.h"

namespace tensorcache {

// What a layer keeps of the past.
enum class CacheMethod {
  kFull,          // every key and value: state grows with the text
  kWindow,        // the last W
  kStreamingLlm,  // the first S (sinks) and the last W, at their positions inside the cache
  kInfini,        // the last W, and Infini-attention's normalised memory of every token
  kTensorCache,   // the last W, and a memory of what the window evicted
};
constexpr auto EnumNames(CacheMethod) {
  return std::to_array<std::pair<CacheMethod, std::string_view>>({{CacheMethod::kFull, "full"},
                                                                  {CacheMethod::kWindow, "window"},
                                                                  {CacheMethod::kStreamingLlm, "streaming_llm"},
                                                                  {CacheMethod::kInfini, "infini"},
                                                                  {CacheMethod::kTensorCache, "tensor_cache"}});
}

// When a token is written into the memory. The chunk modes are the paper's approximations for training; inference under
// them writes on eviction.
enum class MemoryWrite { kEvict, kInsert, kChunkStart, kChunkMean };
constexpr auto EnumNames(MemoryWrite) {
  return std::to_array<std::pair<MemoryWrite, std::string_view>>({{MemoryWrite::kEvict, "evict"},
                                                                  {MemoryWrite::kInsert, "insert"},
                                                                  {MemoryWrite::kChunkStart, "chunk_start"},
                                                                  {MemoryWrite::kChunkMean, "chunk_mean"}});
}

enum class MemoryGate { kScalar, kPerToken };
constexpr auto EnumNames(MemoryGate) {
  return std::to_array<std::pair<MemoryGate, std::string_view>>(
      {{MemoryGate::kScalar, "scalar"}, {MemoryGate::kPerToken, "per_token"}});
}

enum class RouteBy { kKey, kQuery };
constexpr auto EnumNames(RouteBy) {
  return std::to_array<std::pair<RouteBy, std::string_view>>({{RouteBy::kKey, "key"}, {RouteBy::kQuery, "query"}});
}

enum class MemoryLayers { kAll, kNone, kTop };
constexpr auto EnumNames(MemoryLayers) {
  return std::to_array<std::pair<MemoryLayers, std::string_view>>(
      {{MemoryLayers::kAll, "all"}, {MemoryLayers::kNone, "none"}, {MemoryLayers::kTop, "top"}});
}

enum class NormKind { kLayerNorm, kRmsNorm };
constexpr auto EnumNames(NormKind) {
  return std::to_array<std::pair<NormKind, std::string_view>>(
      {{NormKind::kLayerNorm, "layer_norm"}, {NormKind::kRmsNorm, "rms_norm"}});
}

struct TensorCacheConfig {
  WriteRule rule = WriteRule::kOuter;
  MemoryWrite write = MemoryWrite::kEvict;
  int64_t chunk = 32;
  double lambda_init = 0.995;
  bool learn_lambda = true;
  double eta_init = 0.05;
  bool learn_eta = true;
  MemoryGate gate = MemoryGate::kScalar;
  double gate_init = 0;
  bool learn_gate = true;
  bool zero_output = false;
  bool normalize_queries = false;
  bool normalize_keys = false;
  double value_scale = 1;
  int64_t slots = 1;
  int64_t top_k = 1;
  double router_temperature = 1;
  RouteBy route_by = RouteBy::kKey;
  bool two_timescale = false;
  double slow_lambda_init = 0.9995;
  double slow_eta_init = 0.05;
  double alpha_init = 0;
  bool normalize_reads = false;
  double read_floor = 1;
  bool memory_rope = true;
  MemoryLayers layers = MemoryLayers::kAll;
  int64_t top_layers = 1;

  template <class V>
  void Fields(V& v) {
    v("rule", rule, "outer: A <- lambda A + eta k^T v; delta writes what A does not know yet; wedge: k^T v - v^T k");
    v("write", write, "evict: when a token leaves the window; insert: on arrival; chunk_*: the paper's training modes");
    v("chunk", chunk, "C, tokens per chunk of the chunk modes");
    v("lambda_init", lambda_init, "lambda, decay of the memory per write, at the start of training");
    v("learn_lambda", learn_lambda, "false: lambda stays as it is");
    v("eta_init", eta_init, "eta, write rate, at the start of training");
    v("learn_eta", learn_eta, "false: eta stays as it is");
    v("gate", gate, "scalar: one g per layer; per_token: sigmoid(w x + b)");
    v("gate_init", gate_init, "g (or b), the gate's logit at the start of training");
    v("learn_gate", learn_gate, "false: the gate stays as it is");
    v("zero_output", zero_output, "W_tc starts at zero: training starts from what window attention computes");
    v("normalize_queries", normalize_queries, "memory reads use q / |q|");
    v("normalize_keys", normalize_keys, "memory writes use k / |k|");
    v("value_scale", value_scale, "memory writes use value_scale * v");
    v("slots", slots, "S, memories per head, one of which each token is written to");
    v("top_k", top_k, "slots that a query reads");
    v("router_temperature", router_temperature, "tau of the slots' router");
    v("route_by", route_by, "what chooses the slot of a write: its key, or the query of the step that writes it");
    v("two_timescale", two_timescale, "a second, slow memory: r = r_fast + sigmoid(alpha) r_slow");
    v("slow_lambda_init", slow_lambda_init, "lambda of the slow memory, at the start of training");
    v("slow_eta_init", slow_eta_init, "eta of the slow memory, at the start of training");
    v("alpha_init", alpha_init, "alpha, the slow memory's logit, at the start of training");
    v("normalize_reads", normalize_reads, "divide each read by max(|q z|, read_floor), z the memory of ones");
    v("read_floor", read_floor, "the least divisor of normalize_reads");
    v("memory_rope", memory_rope, "false: the memory is addressed by keys and queries before rotary embedding");
    v("layers", layers, "which layers have a memory");
    v("top_layers", top_layers, "how many, counted from the output, if layers is top");
  }
};

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

  // Whether layer `layer` of `layers` has a memory of evicted pairs (method tensor_cache).
  bool HasTensorCache(int64_t layer, int64_t layers) const {
    if (method != CacheMethod::kTensorCache || tensor_cache.layers == MemoryLayers::kNone) return false;
    return tensor_cache.layers == MemoryLayers::kAll || layer >= layers - tensor_cache.top_layers;
  }

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
  bool HasTensorCache(int64_t layer) const { return cache.HasTensorCache(layer, num_hidden_layers); }

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

}  // namespace tensorcache
