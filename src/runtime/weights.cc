#include "runtime/weights.h"

#include <fmt/format.h>

#include "core/tensor_floats.h"
#include "runtime/rows_math.h"

namespace tensorcache::runtime {
namespace {

class Loader {
 public:
  Loader(const ModelConfig& config, WeightType type, WeightSource& source, ThreadPool& pool)
      : config_(config), type_(type), source_(source), pool_(pool) {}

  Result<Weights> Load() {
    const int64_t V = config_.vocab_size, E = config_.hidden_size;
    const std::string embedding = "model.embed_tokens.weight";
    TC_ASSIGN_OR_RETURN(weights_.embedding, Tensor(embedding, {V, E}));
    if (config_.position_embedding == PositionKind::kLearned) {
      TC_ASSIGN_OR_RETURN(weights_.positions,
                          Tensor("model.embed_positions.weight", {config_.max_position_embeddings, E}));
    }
    weights_.memories.resize(static_cast<size_t>(config_.num_hidden_layers));
    for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
      weights_.layers.emplace_back();
      TC_RETURN_IF_ERROR(LoadLayer(i, weights_.layers.back()));
    }
    TC_RETURN_IF_ERROR(LoadNorm("model.norm", weights_.final_norm));
    const std::string head = config_.tie_word_embeddings ? embedding : "lm_head.weight";
    TensorRef tensor = weights_.embedding;
    if (!config_.tie_word_embeddings) {
      TC_ASSIGN_OR_RETURN(tensor, Tensor(head, {V, E}));
    }
    TC_RETURN_IF_ERROR(MakeMatrix({{.name = head, .tensor = tensor}}, weights_.head));
    return std::move(weights_);
  }

 private:
  Result<TensorRef> Tensor(const std::string& name, std::vector<int64_t> shape) {
    TC_ASSIGN_OR_RETURN(const TensorRef tensor, source_.Get(name, std::move(shape)));
    TC_RETURN_IF_ERROR(CheckIsFloat(name, tensor));
    weights_.parameters += static_cast<int64_t>(tensor.data.size()) / DTypeBytes(tensor.dtype);
    return tensor;
  }
  Result<std::vector<float>> Vector(const std::string& name, std::vector<int64_t> shape) {
    TC_ASSIGN_OR_RETURN(const TensorRef tensor, Tensor(name, std::move(shape)));
    std::vector<float> values(tensor.data.size() / static_cast<size_t>(DTypeBytes(tensor.dtype)));
    ReadFloats(tensor, 0, static_cast<int64_t>(values.size()), values.data());
    return values;
  }
  Status MakeMatrix(std::vector<MatrixPart> parts, Matrix& matrix) {
    TC_ASSIGN_OR_RETURN(matrix, Matrix::Make(parts, type_, pool_));
    weights_.bytes_per_token += matrix.bytes();
    return OkStatus();
  }

  Status LoadNorm(const std::string& name, NormWeights& norm) {
    TC_ASSIGN_OR_RETURN(norm.weight, Vector(name + ".weight", {config_.hidden_size}));
    if (config_.norm == NormKind::kLayerNorm) {
      TC_ASSIGN_OR_RETURN(norm.bias, Vector(name + ".bias", {config_.hidden_size}));
    }
    return OkStatus();
  }
  Status LoadLinear(const std::string& name, int64_t out, int64_t in, bool bias, LinearWeights& linear) {
    TC_ASSIGN_OR_RETURN(const TensorRef tensor, Tensor(name + ".weight", {out, in}));
    TC_RETURN_IF_ERROR(MakeMatrix({{.name = name + ".weight", .tensor = tensor}}, linear.matrix));
    if (bias) {
      TC_ASSIGN_OR_RETURN(linear.bias, Vector(name + ".bias", {out}));
    }
    return OkStatus();
  }

  Status LoadLayer(int64_t index, LayerWeights& layer) {
    const std::string at = fmt::format("model.layers.{}.", index), attention = at + "self_attn.", mlp = at + "mlp.";
    const int64_t E = config_.hidden_size, F = config_.intermediate_size, D = config_.HeadDim();
    const int64_t queries = config_.num_attention_heads * D, keys = config_.num_key_value_heads * D;
    TC_RETURN_IF_ERROR(LoadNorm(at + "input_layernorm", layer.attention_norm));
    TC_RETURN_IF_ERROR(LoadLinear(attention + "q_proj", queries, E, config_.attention_bias, layer.q));
    TC_RETURN_IF_ERROR(LoadLinear(attention + "k_proj", keys, E, config_.attention_bias, layer.k));
    TC_RETURN_IF_ERROR(LoadLinear(attention + "v_proj", keys, E, config_.attention_bias, layer.v));
    TC_RETURN_IF_ERROR(LoadOut(attention, index, layer));
    if (config_.cache.method == CacheMethod::kInfini) {
      TC_ASSIGN_OR_RETURN(layer.infini_gate, Vector(attention + "infini.gate", {config_.num_attention_heads}));
      for (float& gate : layer.infini_gate) gate = Sigmoid(gate);
    }
    TC_RETURN_IF_ERROR(LoadNorm(at + "post_attention_layernorm", layer.mlp_norm));
    if (config_.gated_mlp) TC_RETURN_IF_ERROR(LoadLinear(mlp + "gate_proj", F, E, config_.mlp_bias, layer.gate));
    TC_RETURN_IF_ERROR(LoadLinear(mlp + "up_proj", F, E, config_.mlp_bias, layer.up));
    return LoadLinear(mlp + "down_proj", E, F, config_.mlp_bias, layer.down);
  }

  Status LoadOut(const std::string& attention, int64_t index, LayerWeights& layer) {
    const int64_t E = config_.hidden_size, queries = config_.num_attention_heads * config_.HeadDim();
    const std::string name = attention + "o_proj.weight";
    TC_ASSIGN_OR_RETURN(const TensorRef out, Tensor(name, {E, queries}));
    std::vector<MatrixPart> parts = {{.name = name, .tensor = out}};
    if (config_.output_bias) {
      TC_ASSIGN_OR_RETURN(layer.out.bias, Vector(attention + "o_proj.bias", {E}));
    }
    if (config_.HasTensorCache(index)) {
      TC_RETURN_IF_ERROR(LoadMemory(attention + "tensor_cache.", weights_.memories[static_cast<size_t>(index)], layer));
      const std::string memory = attention + "tensor_cache.o_proj.weight";
      TC_ASSIGN_OR_RETURN(const TensorRef tensor, Tensor(memory, {E, queries}));
      TC_ASSIGN_OR_RETURN(const std::vector<float> gate, Vector(attention + "tensor_cache.gate", {1}));
      const bool per_token = config_.cache.tensor_cache.gate == MemoryGate::kPerToken;
      if (per_token) layer.token_gate_bias = gate[0];
      parts.push_back({.name = memory, .tensor = tensor, .factor = per_token ? 1 : Sigmoid(gate[0])});
    }
    return MakeMatrix(parts, layer.out.matrix);
  }

  Status LoadMemory(const std::string& at, MemoryParameters& memory, LayerWeights& layer) {
    const TensorCacheConfig& tc = config_.cache.tensor_cache;
    const int64_t G = config_.num_key_value_heads, timescales = tc.two_timescale ? 2 : 1;
    TC_ASSIGN_OR_RETURN(memory.lambda_logit, Vector(at + "lambda_logit", {G, timescales}));
    TC_ASSIGN_OR_RETURN(memory.eta_logit, Vector(at + "eta_logit", {G, timescales}));
    if (tc.slots > 1) {
      TC_ASSIGN_OR_RETURN(memory.slot_keys, Vector(at + "slot_keys", {G, tc.slots, config_.HeadDim()}));
    }
    if (tc.two_timescale) {
      TC_ASSIGN_OR_RETURN(memory.alpha, Vector(at + "alpha", {1}));
    }
    if (tc.gate == MemoryGate::kPerToken) {
      TC_ASSIGN_OR_RETURN(layer.token_gate, Vector(at + "gate_proj.weight", {config_.hidden_size}));
    }
    return OkStatus();
  }

  const ModelConfig& config_;
  WeightType type_;
  WeightSource& source_;
  ThreadPool& pool_;
  Weights weights_;
};

}  // namespace

Result<Weights> LoadWeights(const ModelConfig& config, WeightType type, WeightSource& source, ThreadPool& pool) {
  return Loader(config, type, source, pool).Load();
}

}  // namespace tensorcache::runtime
