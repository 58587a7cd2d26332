// The trained tensors of a model, and how checkpoints name them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensorcache/config.h"
#include "tensorcache/status.h"
#include "train/torch.h"
#include "train/train_config.h"

namespace tensorcache::train {

// How the optimiser treats a parameter.
enum class ParameterKind {
  kMatrix,        // weight decay
  kVector,        // norms and biases: none
  kMemoryOutput,  // W_tc: weight decay, and a learning rate of its own
  kMemory,        // gates, lambda, eta, alpha, slot keys: none, and a learning rate of their own
};

// An addition of low rank to a weight: scale B A.
struct LowRank {
  Tensor a;  // (r, in)
  Tensor b;  // (out, r); zero at the start
  double scale = 0;
};

struct AttentionParameters {
  Tensor qkv_weight;  // ((H + 2 G) D, E): rows of q, then k, then v
  Tensor qkv_bias;    // undefined: none
  Tensor out_weight;  // W_o (E, H D)
  Tensor out_bias;

  // Method tensor_cache, in layers that have a memory. Z memories a head: timescales x slots.
  Tensor memory_out_weight;  // W_tc (E, H D)
  Tensor lambda_logit;       // (G, timescales): lambda = sigmoid
  Tensor eta_logit;          // (G, timescales)
  Tensor gate;               // (1): the scalar gate's logit, or the per-token gate's bias
  Tensor gate_weight;        // (E), per-token gate only
  Tensor alpha;              // (1), two timescales only
  Tensor slot_keys;          // (G, S, D), S > 1 only

  Tensor infini_gate;  // beta (H), method infini

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
// Which tensors require gradients. Those that the config freezes never do.
void SetTrained(const ModelConfig& config, TrainedParameters trained, ModelParameters* parameters);
// The same model without low-rank additions, which are part of the weights then. Shares what has none.
ModelParameters Merged(const ModelParameters& parameters);

// In a fixed order. Frozen tensors are included; they do not require gradients.
std::vector<NamedParameter> AllParameters(const ModelParameters& parameters);
std::vector<StoredParameter> StoredParameters(const ModelConfig& config, const ModelParameters& parameters);

// Whether a tensor of this name belongs to a memory: W_tc, gates, lambda, eta, ...
bool IsOfMemory(const std::string& name);

int64_t CountParameters(const ModelParameters& parameters);
int64_t CountTrained(const ModelParameters& parameters);

}  // namespace tensorcache::train
