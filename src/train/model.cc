#include "train/model.h"

#include <fmt/format.h>

#include "core/check.h"
#include "train/attention.h"
#include "train/ops/mlp.h"
#include "train/ops/norm.h"

namespace tensorcache::train {
namespace {

Tensor Norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const ForwardContext& context) {
  const ModelConfig& config = context.config;
  return config.norm == NormKind::kLayerNorm ? LayerNorm(x, weight, bias, config.norm_eps, context.options.backend)
                                             : RmsNorm(x, weight, config.norm_eps, context.options.backend);
}

Tensor Dropout(const Tensor& x, const ForwardContext& context) {
  const ForwardOptions& options = context.options;
  return options.training && options.dropout > 0 ? at::dropout(x, options.dropout, true) : x;
}

Tensor FeedForward(const LayerParameters& p, const Tensor& x, const ForwardContext& context) {
  const at::ScalarType dtype = context.options.dtype;
  return Mlp({.x = x,
              .in_weight = As(p.mlp_in_weight, dtype),
              .in_bias = As(p.mlp_in_bias, dtype),
              .down_weight = As(p.mlp_down_weight, dtype),
              .down_bias = As(p.mlp_down_bias, dtype),
              .activation = context.config.hidden_act,
              .gated = context.config.gated_mlp},
             context.options.backend);
}

// The residual stream stays float32 whatever the sub-layers compute in.
Tensor Layer(const LayerParameters& p, Tensor x, int64_t layer, LayerState* state, ForwardContext& context) {
  const at::ScalarType dtype = context.options.dtype;
  const Tensor normal = Norm(x, p.attention_norm_weight, p.attention_norm_bias, context).to(dtype);
  const Tensor attended = Attention(p.attention, normal, layer, state, context);
  x = x + Dropout(attended, context);
  const Tensor mixed = FeedForward(p, Norm(x, p.mlp_norm_weight, p.mlp_norm_bias, context).to(dtype), context);
  return x + Dropout(mixed, context);
}

// Learned positions: no turns at all.
Result<RopeFrequencies> FrequenciesOf(const ModelConfig& config) {
  const int64_t D = config.HeadDim();
  if (config.position_embedding == PositionKind::kLearned) return RopeFrequencies{.pairs = D / 2, .hi = {}, .lo = {}};
  return MakeRopeFrequencies(D, NtkAwareBase(config.rope_theta, config.rope_ntk_factor, D), config.rope_scaling);
}

}  // namespace

Result<Model> Model::Create(const ModelConfig& config, const RandomStart& start, at::Device device) {
  TC_RETURN_IF_ERROR(ValidateModelConfig(config));
  const methods::Method& method = methods::MethodOf(config.cache);
  if (FindTrainMethod(method) == nullptr) {
    return InvalidArgument(
        fmt::format("cache.method {} cannot be trained: this program has its run half alone", method.name()));
  }
  TC_ASSIGN_OR_RETURN(const RopeFrequencies frequencies, FrequenciesOf(config));
  return Model(config, frequencies, InitialParameters(config, start, device));
}

void Model::SetTrained(const TrainOptions& options) {
  if (options.parameters == TrainedParameters::kLora) AddLowRank(config_, options, &parameters_);
  train::SetTrained(options.parameters, &parameters_);
}

Tensor Model::Hidden(const Tensor& tokens, const ForwardOptions& options, ModelState* state,
                     std::vector<LayerMetrics>* metrics) const {
  const int64_t T = tokens.size(1);
  if (state != nullptr && state->layers.empty()) state->layers.resize(parameters_.layers.size());
  const int64_t position = state != nullptr ? state->position : 0;
  ForwardContext context(config_, frequencies_, options, position, state != nullptr ? state->origin : 0, T, device());
  context.metrics = metrics;
  Tensor x = at::embedding(parameters_.embedding, tokens);
  if (parameters_.positions.defined()) {
    TC_CHECK(position + T <= config_.max_position_embeddings);
    x = x + parameters_.positions.narrow(0, position, T);
  }
  x = Dropout(x, context);
  for (size_t i = 0; i < parameters_.layers.size(); ++i) {
    x = Layer(parameters_.layers[i], std::move(x), static_cast<int64_t>(i),
              state != nullptr ? &state->layers[i] : nullptr, context);
  }
  if (state != nullptr) state->position += T;
  return Norm(x, parameters_.final_norm_weight, parameters_.final_norm_bias, context);
}

Tensor Model::Logits(const Tensor& hidden) const {
  return at::linear(hidden, parameters_.head.to(hidden.scalar_type()));
}

}  // namespace tensorcache::train
