#include "runtime/weights.h"

#include <fmt/format.h>

#include "core/tensor_floats.h"

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
    return AllFloats(name, tensor);
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
    TC_RETURN_IF_ERROR(LoadMethod(index, layer, parts));
    return MakeMatrix(parts, layer.out.matrix);
  }

  // What the cache method has learned; adds to the parts of the out projection.
  Status LoadMethod(int64_t index, LayerWeights& layer, std::vector<MatrixPart>& parts) {
    const methods::Method& method = methods::MethodOf(config_.cache);
    const methods::LayerPlace place = methods::PlaceOf(config_, index);
    LearnedNumbers& numbers = weights_.memories[static_cast<size_t>(index)];
    using Role = methods::LearnedTensor::Role;
    for (const methods::LearnedTensor& tensor : method.Tensors(place)) {
      const std::string name = methods::TensorName(method, index, tensor);
      if (tensor.role == Role::kNumbers) {
        TC_ASSIGN_OR_RETURN(numbers[tensor.name], Vector(name, tensor.shape));
      } else if (tensor.role == Role::kCacheInput || tensor.role == Role::kFusionInput) {
        LinearWeights& input = tensor.role == Role::kCacheInput ? layer.cache_input : layer.fusion_input;
        TC_ASSIGN_OR_RETURN(const TensorRef matrix, Tensor(name, tensor.shape));
        TC_RETURN_IF_ERROR(MakeMatrix({{.name = name, .tensor = matrix}}, input.matrix));
      }
    }
    TC_ASSIGN_OR_RETURN(layer.fusion, method.MakeFusion(place, numbers));
    for (const methods::Fusion::OutputMatrix& matrix : layer.fusion->matrices()) {
      const std::string name = methods::TensorName(method, index, matrix.tensor);
      TC_ASSIGN_OR_RETURN(const TensorRef tensor, Tensor(name, matrix.tensor.shape));
      parts.push_back({.name = name, .tensor = tensor, .factor = matrix.factor});
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
