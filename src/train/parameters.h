// The trained tensors of a model, and how checkpoints name them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "methods/method.h"
#include "tensorcache/config.h"
#include "tensorcache/status.h"
#include "train/torch.h"
#include "train/train_config.h"

namespace tensorcache::train {

// How the optimiser treats a parameter.
enum class ParameterKind {
  kMatrix,        // weight decay
  kVector,        // norms and biases: none
  kMemoryOutput,  // a method's matrix to the residual stream: weight decay, and a learning rate of its own
  kMemory,        // a method's few numbers: none, and a learning rate of their own
};

// An addition of low rank to a weight: scale B A.
struct LowRank {
  Tensor a;  // (r, in)
  Tensor b;  // (out, r); zero at the start
  double scale = 0;
};

// A tensor that the cache method declares (methods::Method::Tensors).
struct MethodTensor {
  methods::LearnedTensor declared;
  std::string name;  // in checkpoints
  Tensor tensor;
};

struct AttentionParameters {
  Tensor qkv_weight;  // ((H + 2 G) D, E): rows of q, then k, then v
  Tensor qkv_bias;    // undefined: none
  Tensor out_weight;  // W_o (E, H D)
  Tensor out_bias;

  std::vector<MethodTensor> of_method;  // what the layer's cache method learns
  // The one of that name ("lambda_logit"); undefined if the layer has none.
  const Tensor& Get(std::string_view name) const;

  // While training with train.parameters lora; undefined otherwise. Not in checkpoints: Merged adds them to the weights.
  LowRank q, k, v, out;

  // With the low-rank additions.
  Tensor QkvWeight() const;
  Tensor OutWeight() const;
};

struct LayerParameters {
  Tensor attention_norm_weight, attention_norm_bias;  // (E); bias: LayerNorm only
  AttentionParameters attention;
  Tensor mlp_norm_weight, mlp_norm_bias;
  Tensor mlp_in_weight;  // (F, E), or (2 F, E) with a gate, gate's rows first
  Tensor mlp_in_bias;
  Tensor mlp_down_weight;  // (E, F)
  Tensor mlp_down_bias;
};

struct ModelParameters {
  Tensor embedding;  // (V, E)
  Tensor positions;  // (max_position_embeddings, E), learned positions only
  std::vector<LayerParameters> layers;
  Tensor final_norm_weight, final_norm_bias;
  Tensor head;  // (V, E); the embedding itself if tied
};

// One tensor; shares storage with its place in ModelParameters.
struct NamedParameter {
  std::string name;  // of the whole tensor; what is fused here has a name of its own ("...qkv_proj.weight")
  ParameterKind kind;
  Tensor tensor;
};

// A tensor as checkpoints store it: fused projections are stored as their parts, low-rank additions not at all. Shares
// storage.
struct StoredParameter {
  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  Tensor tensor;
};

struct RandomStart {
  uint64_t seed = 0;
  double deviation = 0.02;  // of matrices; divided by sqrt(2 layers) for those that add to the residual stream
};
// Freshly initialised, float32, requiring gradients unless the config freezes them: matrices are normal, norms and biases
// ones and zeros. The same bits for the same seed on any machine.
ModelParameters InitialParameters(const ModelConfig& config, const RandomStart& start, at::Device device);

// Adds q, k, v and out of low rank to every layer: what they add is zero at the start.
void AddLowRank(const ModelConfig& config, const TrainOptions& options, ModelParameters* parameters);
// Which tensors require gradients. Those that the cache method freezes never do.
void SetTrained(TrainedParameters trained, ModelParameters* parameters);
// The same model without low-rank additions, which are part of the weights then. Shares what has none.
ModelParameters Merged(const ModelParameters& parameters);

// In a fixed order. Frozen tensors are included; they do not require gradients.
std::vector<NamedParameter> AllParameters(const ModelParameters& parameters);
std::vector<StoredParameter> StoredParameters(const ModelConfig& config, const ModelParameters& parameters);

int64_t CountParameters(const ModelParameters& parameters);
int64_t CountTrained(const ModelParameters& parameters);

}  // namespace tensorcache::train
