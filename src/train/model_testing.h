// Every cache method and option as a case, one of a program's own too, and models and texts to try them on.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/config.h"
#include "core/rng.h"
#include "train/model.h"
#include "train/toy_train_method_testing.h"

namespace tensorcache::train {

inline ModelConfig SmallConfig() {
  ModelConfig config;
  config.vocab_size = 29;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.cache.window = 6;
  return config;
}

struct Case {
  std::string name;
  std::vector<std::string> overrides;
};

// gtest prints this with a failure.
inline void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

inline std::vector<Case> Methods() {
  AddToyTrainMethod();
  return {{"full", {"cache.method=full"}},
          {"full_ntk", {"cache.method=full", "rope_ntk_factor=4"}},
          {"window", {"cache.method=window"}},
          {"window_1", {"cache.method=window", "cache.window=1"}},
          {"streaming_llm", {"cache.method=streaming_llm", "cache.sinks=3"}},
          {"streaming_llm_more_sinks_than_window", {"cache.method=streaming_llm", "cache.sinks=9", "cache.window=4"}},
          {"infini", {"cache.method=infini"}},
          {"infini_delta", {"cache.method=infini", "cache.infini.delta=true"}},
          {"infini_plain_keys", {"cache.method=infini", "cache.infini.memory_rope=false"}},
          {"toy", {"cache.method=running_mean"}}};
}

inline std::vector<Case> TensorCacheOptions() {
  const std::string tc = "cache.tensor_cache.";
  const std::vector<Case> rules = {
      {"outer", {tc + "write.rule=outer"}}, {"delta", {tc + "write.rule=delta"}}, {"wedge", {tc + "write.rule=wedge"}}};
  const std::vector<Case> options = {
      {"default", {}},
      {"insert", {tc + "write.when=insert"}},
      {"chunk_start", {tc + "write.when=chunk_start", tc + "write.chunk=4"}},
      {"chunk_mean", {tc + "write.when=chunk_mean", tc + "write.chunk=4"}},
      {"token_gate", {tc + "read.gate=per_token", tc + "read.gate_init=-2"}},
      {"frozen", {tc + "write.learn_lambda=false", tc + "write.learn_eta=false", tc + "read.learn_gate=false"}},
      {"unit_queries_keys",
       {tc + "address.normalize_queries=true", tc + "address.normalize_keys=true", tc + "write.value_scale=0.5"}},
      {"slots", {tc + "router.slots=3", tc + "router.top_k=2", tc + "router.temperature=0.5"}},
      {"slots_all", {tc + "router.slots=2", tc + "router.top_k=2"}},
      {"slots_by_query", {tc + "router.slots=3", tc + "router.by=query"}},
      {"slots_insert_by_query", {tc + "router.slots=3", tc + "router.by=query", tc + "write.when=insert"}},
      {"slots_plain_keys", {tc + "router.slots=3", tc + "address.rope=false"}},
      {"slots_chunk_start", {tc + "router.slots=3", tc + "write.when=chunk_start"}},
      {"two_timescale", {tc + "timescales.slow=true", tc + "timescales.alpha_init=1"}},
      {"two_timescale_slots", {tc + "timescales.slow=true", tc + "router.slots=2"}},
      {"plain_keys", {tc + "address.rope=false"}},
      {"plain_unit_keys", {tc + "address.rope=false", tc + "address.normalize_keys=true"}},
      {"no_layers", {tc + "layers=none"}},
      {"top_layer", {tc + "layers=top", tc + "top_layers=1"}},
      {"window_1", {"cache.window=1"}},
      {"long_window", {"cache.window=100"}}};
  const std::vector<Case> normalized = {
      {"normalized_reads", {tc + "read.normalize=true", tc + "read.floor=0.01"}},
      {"normalized_slots", {tc + "read.normalize=true", tc + "router.slots=2", tc + "timescales.slow=true"}}};
  std::vector<Case> cases;
  for (const Case& rule : rules) {
    const auto add = [&](const Case& option) {
      Case combined{rule.name + "_" + option.name, rule.overrides};
      combined.overrides.insert(combined.overrides.end(), option.overrides.begin(), option.overrides.end());
      cases.push_back(combined);
    };
    for (const Case& option : options) add(option);
    if (rule.name == "wedge") continue;  // refused with read.normalize
    for (const Case& option : normalized) add(option);
  }
  return cases;
}

inline std::vector<Case> Backbones() {
  return {
      {"llama",
       {"norm=rms_norm", "hidden_act=silu", "gated_mlp=true", "rope_pairing=interleaved", "tie_word_embeddings=false",
        "num_key_value_heads=1"}},
      {"gpt",
       {"hidden_act=gelu_tanh", "attention_bias=true", "output_bias=true", "mlp_bias=true", "num_key_value_heads=4",
        "rope_theta=500"}},
      {"llama3_rope",
       {"rope_scaling.rope_type=llama3", "rope_scaling.factor=8", "rope_scaling.original_max_position_embeddings=64"}},
      {"linear_rope", {"cache.method=streaming_llm", "rope_scaling.rope_type=linear", "rope_scaling.factor=4"}},
      {"learned_positions", {"position_embedding=learned", "max_position_embeddings=256"}},
      {"learned_positions_plain_keys",
       {"position_embedding=learned", "max_position_embeddings=256", "cache.tensor_cache.address.rope=false"}},
      {"learned_positions_infini",
       {"position_embedding=learned", "max_position_embeddings=256", "cache.method=infini"}}};
}

inline std::vector<Case> AllCases() {
  std::vector<Case> all = Methods();
  for (const Case& c : TensorCacheOptions()) all.push_back(c);
  for (const Case& c : Backbones()) all.push_back(c);
  return all;
}

inline ModelConfig ConfigOf(const Case& c) {
  ModelConfig config = SmallConfig();
  for (const std::string& assignment : c.overrides) {
    const Status status = ApplyOverride(assignment, &config);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return config;
}

// A model whose parameters are all away from their initial symmetry and large enough for differences to show.
inline Model RandomModel(const ModelConfig& config) {
  Result<Model> model = Model::Create(config, {.seed = 7});
  EXPECT_TRUE(model.ok()) << model.status().message();
  at::NoGradGuard no_grad;
  at::manual_seed(11);
  for (const NamedParameter& parameter : AllParameters(model->parameters())) {
    const bool is_matrix = parameter.kind == ParameterKind::kMatrix || parameter.kind == ParameterKind::kMemoryOutput;
    if (is_matrix) parameter.tensor.mul_(8);
    if (!is_matrix) parameter.tensor.add_(at::randn_like(parameter.tensor) * 0.2);
  }
  return std::move(model).value();
}

// (batch, tokens)
inline Tensor RandomTokens(const ModelConfig& config, int64_t batch, int64_t length, uint64_t seed) {
  Rng rng(seed);
  Tensor tokens = at::empty({batch, length}, at::kLong);
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    tokens.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(rng.Below(static_cast<uint64_t>(config.vocab_size)));
  }
  return tokens;
}

}  // namespace tensorcache::train
