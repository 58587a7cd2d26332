#include "train/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/rng.h"

namespace tensorcache::train {
namespace {

ParameterKind KindOf(methods::LearnedTensor::Role role) {
  return role == methods::LearnedTensor::Role::kOutput ? ParameterKind::kMemoryOutput : ParameterKind::kMemory;
}

// Calls visit(name, kind, tensor) for every tensor of the model that is defined, in a fixed order. The one list of names,
// but for those of the cache methods.
template <class Parameters, class Visit>
void ForEachParameter(Parameters& p, const Visit& visit) {
  const auto see = [&](const std::string& name, ParameterKind kind, auto& tensor) {
    if (tensor.defined()) visit(name, kind, tensor);
  };
  see("model.embed_tokens.weight", ParameterKind::kMatrix, p.embedding);
  see("model.embed_positions.weight", ParameterKind::kMatrix, p.positions);
  for (size_t i = 0; i < p.layers.size(); ++i) {
    auto& layer = p.layers[i];
    auto& attention = layer.attention;
    const std::string at = fmt::format("model.layers.{}.", i);
    see(at + "input_layernorm.weight", ParameterKind::kVector, layer.attention_norm_weight);
    see(at + "input_layernorm.bias", ParameterKind::kVector, layer.attention_norm_bias);
    see(at + "self_attn.qkv_proj.weight", ParameterKind::kMatrix, attention.qkv_weight);
    see(at + "self_attn.qkv_proj.bias", ParameterKind::kVector, attention.qkv_bias);
    see(at + "self_attn.o_proj.weight", ParameterKind::kMatrix, attention.out_weight);
    see(at + "self_attn.o_proj.bias", ParameterKind::kVector, attention.out_bias);
    for (auto& part : attention.of_method) see(part.name, KindOf(part.declared.role), part.tensor);
    for (const auto& [name, low_rank] : {std::pair("q", &attention.q), std::pair("k", &attention.k),
                                         std::pair("v", &attention.v), std::pair("o", &attention.out)}) {
      see(at + fmt::format("self_attn.{}_proj.lora_a", name), ParameterKind::kMatrix, low_rank->a);
      see(at + fmt::format("self_attn.{}_proj.lora_b", name), ParameterKind::kMatrix, low_rank->b);
    }
    see(at + "post_attention_layernorm.weight", ParameterKind::kVector, layer.mlp_norm_weight);
    see(at + "post_attention_layernorm.bias", ParameterKind::kVector, layer.mlp_norm_bias);
    see(at + "mlp.in_proj.weight", ParameterKind::kMatrix, layer.mlp_in_weight);
    see(at + "mlp.in_proj.bias", ParameterKind::kVector, layer.mlp_in_bias);
    see(at + "mlp.down_proj.weight", ParameterKind::kMatrix, layer.mlp_down_weight);
    see(at + "mlp.down_proj.bias", ParameterKind::kVector, layer.mlp_down_bias);
  }
  see("model.norm.weight", ParameterKind::kVector, p.final_norm_weight);
  see("model.norm.bias", ParameterKind::kVector, p.final_norm_bias);
  if (!p.head.is_same(p.embedding)) see("lm_head.weight", ParameterKind::kMatrix, p.head);
}

// Makes tensors; numbers them, so that each has random numbers of its own.
class Initializer {
 public:
  explicit Initializer(uint64_t seed, double deviation = 0) : seed_(seed), deviation_(deviation) {}

  Tensor Normal(at::IntArrayRef shape) { return Normal(shape, deviation_); }
  // Of what adds to the residual stream, twice a layer.
  Tensor Residual(at::IntArrayRef shape, int64_t layers, double scale = 1) {
    return Normal(shape, deviation_ / std::sqrt(2.0 * static_cast<double>(layers)) * scale);
  }
  Tensor Normal(at::IntArrayRef shape, double deviation) {
    constexpr int64_t kPiece = 1 << 14;  // each with a stream of its own, so that threads can share the work
    Tensor tensor = at::empty(shape, at::kFloat);
    float* data = tensor.mutable_data_ptr<float>();
    const uint64_t first_stream = next_tensor_++ << 32;
    const int64_t pieces = (tensor.numel() + kPiece - 1) / kPiece;
    at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece) {
        Rng rng(seed_, first_stream + static_cast<uint64_t>(piece));
        const int64_t last = std::min(tensor.numel(), (piece + 1) * kPiece);
        for (int64_t i = piece * kPiece; i < last; ++i) data[i] = static_cast<float>(deviation * rng.Normal());
      }
    });
    return tensor;
  }

 private:
  uint64_t seed_;
  double deviation_;
  uint64_t next_tensor_ = 0;
};

Tensor Constant(at::IntArrayRef shape, double value) { return at::full(shape, value, at::kFloat); }

Tensor InitialTensor(const methods::LearnedTensor& declared, int64_t layers, Initializer& init) {
  using Random = methods::LearnedTensor::Random;
  if (declared.values.empty()) {
    return declared.random == Random::kResidual ? init.Residual(declared.shape, layers, declared.random_scale)
                                                : init.Normal(declared.shape, declared.random_scale);
  }
  return at::tensor(methods::NumbersOf(declared, {}).value(), at::kFloat).view(declared.shape);
}

AttentionParameters InitialAttention(const ModelConfig& config, int64_t layer, Initializer& init) {
  const int64_t E = config.hidden_size, H = config.num_attention_heads, G = config.num_key_value_heads;
  const int64_t D = config.HeadDim();
  AttentionParameters p;
  p.qkv_weight = init.Normal({(H + 2 * G) * D, E});
  if (config.attention_bias) p.qkv_bias = Constant({(H + 2 * G) * D}, 0);
  p.out_weight = init.Residual({E, H * D}, config.num_hidden_layers);
  if (config.output_bias) p.out_bias = Constant({E}, 0);
  const methods::Method& method = methods::MethodOf(config.cache);
  for (const methods::LearnedTensor& declared : method.Tensors(methods::PlaceOf(config, layer))) {
    p.of_method.push_back({.declared = declared,
                           .name = methods::TensorName(method, layer, declared),
                           .tensor = InitialTensor(declared, config.num_hidden_layers, init)});
  }
  return p;
}

LayerParameters InitialLayer(const ModelConfig& config, int64_t index, Initializer& init) {
  const int64_t E = config.hidden_size, F = config.intermediate_size;
  const bool layer_norm = config.norm == NormKind::kLayerNorm;
  LayerParameters p;
  p.attention_norm_weight = Constant({E}, 1);
  if (layer_norm) p.attention_norm_bias = Constant({E}, 0);
  p.attention = InitialAttention(config, index, init);
  p.mlp_norm_weight = Constant({E}, 1);
  if (layer_norm) p.mlp_norm_bias = Constant({E}, 0);
  const int64_t in_rows = config.gated_mlp ? 2 * F : F;
  p.mlp_in_weight = init.Normal({in_rows, E});
  p.mlp_down_weight = init.Residual({E, F}, config.num_hidden_layers);
  if (config.mlp_bias) {
    p.mlp_in_bias = Constant({in_rows}, 0);
    p.mlp_down_bias = Constant({E}, 0);
  }
  return p;
}

bool IsTrained(const std::string& name, TrainedParameters trained) {
  const auto has = [&](const char* part) { return name.find(part) != name.npos; };
  const bool memory = methods::IsOfMethod(name);
  switch (trained) {
    case TrainedParameters::kAll: return true;
    case TrainedParameters::kMemory: return memory;
    case TrainedParameters::kMemoryAndAttention: return memory || has(".self_attn.");
    case TrainedParameters::kLora: return memory || has(".lora_");
  }
  return true;
}

bool IsLowRank(const std::string& name) { return name.find(".lora_") != name.npos; }

Tensor Addition(const LowRank& low_rank) { return at::matmul(low_rank.b, low_rank.a) * low_rank.scale; }

// What a fused projection consists of: (name of the part, its rows).
using Parts = std::vector<std::pair<std::string, int64_t>>;

Parts PartsOf(const ModelConfig& config, const std::string& name) {
  const int64_t D = config.HeadDim();
  const int64_t q = config.num_attention_heads * D, kv = config.num_key_value_heads * D;
  if (name.find(".self_attn.qkv_proj.") != name.npos) return {{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}};
  if (name.find(".mlp.in_proj.") == name.npos) return {};
  if (!config.gated_mlp) return {{"up_proj", config.intermediate_size}};
  return {{"gate_proj", config.intermediate_size}, {"up_proj", config.intermediate_size}};
}

}  // namespace

ModelParameters InitialParameters(const ModelConfig& config, const RandomStart& start, at::Device device) {
  Initializer init(start.seed, start.deviation);
  ModelParameters p;
  p.embedding = init.Normal({config.vocab_size, config.hidden_size});
  if (config.position_embedding == PositionKind::kLearned) {
    p.positions = init.Normal({config.max_position_embeddings, config.hidden_size});
  }
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) p.layers.push_back(InitialLayer(config, i, init));
  p.final_norm_weight = Constant({config.hidden_size}, 1);
  if (config.norm == NormKind::kLayerNorm) p.final_norm_bias = Constant({config.hidden_size}, 0);
  p.head = config.tie_word_embeddings ? p.embedding : init.Normal({config.vocab_size, config.hidden_size});
  ForEachParameter(p, [&](const std::string&, ParameterKind, Tensor& tensor) {
    if (device != at::kCPU) tensor = tensor.to(device);
  });
  if (config.tie_word_embeddings) p.head = p.embedding;
  SetTrained(TrainedParameters::kAll, &p);
  return p;
}

void AddLowRank(const ModelConfig& config, const TrainOptions& options, ModelParameters* parameters) {
  const int64_t E = config.hidden_size, r = options.lora_rank, D = config.HeadDim();
  const int64_t queries = config.num_attention_heads * D, keys = config.num_key_value_heads * D;
  // Not the numbers that the model itself would draw.
  Initializer init(options.seed ^ 0x6c6f7261);
  const auto make = [&](int64_t out, int64_t in) {
    const Tensor a = init.Normal({r, in}, 1 / std::sqrt(static_cast<double>(in)));
    const at::Device device = parameters->embedding.device();
    return LowRank{
        .a = a.to(device), .b = Constant({out, r}, 0).to(device), .scale = options.lora_alpha / static_cast<double>(r)};
  };
  for (LayerParameters& layer : parameters->layers) {
    layer.attention.q = make(queries, E);
    layer.attention.k = make(keys, E);
    layer.attention.v = make(keys, E);
    layer.attention.out = make(E, queries);
  }
}

void SetTrained(TrainedParameters trained, ModelParameters* parameters) {
  ForEachParameter(*parameters, [&](const std::string& name, ParameterKind, Tensor& tensor) {
    tensor.requires_grad_(IsTrained(name, trained));
  });
  for (LayerParameters& layer : parameters->layers) {
    for (MethodTensor& part : layer.attention.of_method) {
      if (!part.declared.learned) part.tensor.requires_grad_(false);
    }
  }
}

const Tensor& AttentionParameters::Get(std::string_view name) const {
  static const Tensor none;
  const auto found =
      std::find_if(of_method.begin(), of_method.end(), [&](const MethodTensor& t) { return t.declared.name == name; });
  return found == of_method.end() ? none : found->tensor;
}

Tensor AttentionParameters::QkvWeight() const {
  return q.a.defined() ? qkv_weight + at::cat({Addition(q), Addition(k), Addition(v)}) : qkv_weight;
}

Tensor AttentionParameters::OutWeight() const { return out.a.defined() ? out_weight + Addition(out) : out_weight; }

ModelParameters Merged(const ModelParameters& parameters) {
  const at::NoGradGuard no_grad;
  ModelParameters merged = parameters;
  for (LayerParameters& layer : merged.layers) {
    AttentionParameters& p = layer.attention;
    p.qkv_weight = p.QkvWeight();
    p.out_weight = p.OutWeight();
    p.q = p.k = p.v = p.out = {};
  }
  return merged;
}

std::vector<NamedParameter> AllParameters(const ModelParameters& parameters) {
  std::vector<NamedParameter> all;
  ForEachParameter(parameters, [&](const std::string& name, ParameterKind kind, const Tensor& tensor) {
    all.push_back({name, kind, tensor});
  });
  return all;
}

std::vector<StoredParameter> StoredParameters(const ModelConfig& config, const ModelParameters& parameters) {
  std::vector<StoredParameter> stored;
  for (const NamedParameter& parameter : AllParameters(parameters)) {
    if (IsLowRank(parameter.name)) continue;
    const Tensor tensor = parameter.tensor.detach();
    const Parts parts = PartsOf(config, parameter.name);
    if (parts.empty()) stored.push_back({parameter.name, tensor});
    const size_t kind = parameter.name.rfind('.'), projection = parameter.name.rfind('.', kind - 1);
    int64_t row = 0;
    for (const auto& [part, rows] : parts) {
      const std::string name = parameter.name.substr(0, projection + 1) + part + parameter.name.substr(kind);
      stored.push_back({name, tensor.narrow(0, row, rows)});
      row += rows;
    }
  }
  return stored;
}

int64_t CountTrained(const ModelParameters& parameters) {
  int64_t count = 0;
  for (const NamedParameter& parameter : AllParameters(parameters)) {
    if (parameter.tensor.requires_grad()) count += parameter.tensor.numel();
  }
  return count;
}

int64_t CountParameters(const ModelParameters& parameters) {
  int64_t count = 0;
  for (const NamedParameter& parameter : AllParameters(parameters)) count += parameter.tensor.numel();
  return count;
}

}  // namespace tensorcache::train
