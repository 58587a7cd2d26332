#include "tests/fuzz/model_checks.h"

#include "methods/method.h"
#include "tensorcache/session.h"

namespace tensorcache::fuzz {

Status TryModel(const std::string& folder, ModelOptions options) {
  options.threads = 1;
  options.prefill_block = 8;
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, Model::Load(folder, options));
  TC_ASSIGN_OR_RETURN(Session session, Session::Create(model));
  const auto last = static_cast<int32_t>(model->config().vocab_size - 1);
  const std::vector<int32_t> tokens = {0, last, 0, last / 2, last};
  // Numbers of any size may well leave the finite ones.
  for (const Status& status : {session.Prefill(tokens), session.Decode(last), session.Decode(0)}) {
    if (!status.ok()) CheckMessage(status);
  }
  TC_CHECK(session.Prefill(std::vector<int32_t>{last + 1}).code() != StatusCode::kOk);
  Touch(std::as_bytes(session.logits()));
  return OkStatus();
}

ModelConfig SmallModel() {
  ModelConfig config;
  config.vocab_size = 5;
  config.hidden_size = 4;
  config.intermediate_size = 3;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.max_position_embeddings = 16;
  config.norm = NormKind::kRmsNorm;
  config.cache.window = 2;
  return config;
}

std::vector<SeedTensor> TensorsOf(const ModelConfig& config) {
  const int64_t E = config.hidden_size, F = config.intermediate_size, G = config.num_key_value_heads;
  const int64_t D = config.HeadDim(), H = config.num_attention_heads;
  std::vector<SeedTensor> tensors = {{"model.embed_tokens.weight", {config.vocab_size, E}}};
  const auto norm = [&](const std::string& name) {
    tensors.push_back({name + ".weight", {E}});
    if (config.norm == NormKind::kLayerNorm) tensors.push_back({name + ".bias", {E}});
  };
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    tensors.push_back({name + ".weight", {out, in}});
    if (bias) tensors.push_back({name + ".bias", {out}});
  };
  if (config.position_embedding == PositionKind::kLearned) {
    tensors.push_back({"model.embed_positions.weight", {config.max_position_embeddings, E}});
  }
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".", attention = at + "self_attn.";
    norm(at + "input_layernorm");
    linear(attention + "q_proj", H * D, E, config.attention_bias);
    linear(attention + "k_proj", G * D, E, config.attention_bias);
    linear(attention + "v_proj", G * D, E, config.attention_bias);
    linear(attention + "o_proj", E, H * D, config.output_bias);
    const methods::Method& method = methods::MethodOf(config.cache);
    for (const methods::LearnedTensor& tensor : method.Tensors(methods::PlaceOf(config, i))) {
      tensors.push_back({methods::TensorName(method, i, tensor), tensor.shape});
    }
    norm(at + "post_attention_layernorm");
    if (config.gated_mlp) linear(at + "mlp.gate_proj", F, E, config.mlp_bias);
    linear(at + "mlp.up_proj", F, E, config.mlp_bias);
    linear(at + "mlp.down_proj", E, F, config.mlp_bias);
  }
  norm("model.norm");
  if (!config.tie_word_embeddings) linear("lm_head", config.vocab_size, E, false);
  return tensors;
}

}  // namespace tensorcache::fuzz
