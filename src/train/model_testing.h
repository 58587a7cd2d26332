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
  const std::vector<Case> rules = {{"outer", {tc + "write.rule=outer"}},
                                   {"delta", {tc + "write.rule=delta"}},
                                   {"gated_delta", {tc + "write.rule=gated_delta"}},
                                   {"wedge", {tc + "write.rule=wedge"}}};
  const std::vector<Case> options = {
      {"default", {}},
      {"insert", {tc + "write.when=insert"}},
      {"token_gate", {tc + "read.gate=per_token", tc + "read.gate_init=-2"}},
      {"frozen", {tc + "write.learn_lambda=false", tc + "write.learn_eta=false", tc + "read.learn_gate=false"}},
      {"unit_queries_keys",
       {tc + "address.normalize_queries=true", tc + "address.normalize_keys=true", tc + "write.value_scale=0.5"}},
      {"slots", {tc + "router.slots=3", tc + "router.top_k=2", tc + "router.temperature=0.5"}},
      {"slots_all", {tc + "router.slots=2", tc + "router.top_k=2"}},
      {"slots_by_query", {tc + "router.slots=3", tc + "router.by=query"}},
      {"slots_insert_by_query", {tc + "router.slots=3", tc + "router.by=query", tc + "write.when=insert"}},
      {"slots_plain_keys", {tc + "router.slots=3", tc + "address.by=content"}},
      {"two_timescale", {tc + "timescales.slow=true", tc + "timescales.alpha_init=1"}},
      {"two_timescale_slots", {tc + "timescales.slow=true", tc + "router.slots=2"}},
      {"plain_keys", {tc + "address.by=content"}},
      {"plain_unit_keys", {tc + "address.by=content", tc + "address.normalize_keys=true"}},
      {"no_layers", {tc + "layers=none"}},
      {"top_layer", {tc + "layers=top", tc + "top_layers=1"}},
      {"window_1", {"cache.window=1"}},
      {"long_window", {"cache.window=100"}},
      {"conv", {tc + "address.conv=4"}},
      {"conv_previous", {tc + "address.conv=3", tc + "address.conv_previous=1", tc + "address.by=content"}},
      {"conv_1", {tc + "address.conv=1", tc + "address.normalize_queries=true"}},
      {"conv_longer_than_window", {tc + "address.conv=9", tc + "address.by=content", "cache.window=3"}},
      {"conv_insert", {tc + "address.conv=3", tc + "write.when=insert", tc + "address.normalize_keys=true"}},
      {"conv_shift", {tc + "address.conv=3", tc + "address.shift=true", tc + "address.by=content"}},
      {"conv_slots", {tc + "address.conv=2", tc + "router.slots=2", tc + "timescales.slow=true"}},
      {"shift", {tc + "address.shift=true"}},
      {"shift_insert", {tc + "address.shift=true", tc + "write.when=insert", tc + "address.by=content"}},
      {"token_decay", {tc + "write.decay=per_token"}},
      {"token_strength", {tc + "write.strength=per_token"}},
      {"token_rates_insert", {tc + "write.decay=per_token", tc + "write.strength=per_token", tc + "write.when=insert"}},
      {"token_rates_slots",
       {tc + "write.decay=per_token", tc + "write.strength=per_token", tc + "router.slots=3",
        tc + "timescales.slow=true"}},
      {"half_lives", {tc + "write.first_half_life=4", tc + "write.last_half_life=64", tc + "write.max_half_life=100"}},
      {"bounded_token_decay", {tc + "write.decay=per_token", tc + "write.max_half_life=400"}},
      // It divides a strength per head out again, whose gradient would be nothing but rounding.
      {"read_norm", {tc + "read.norm=rms", tc + "write.strength=per_token"}},
      {"soft_read_norm", {tc + "read.norm=soft", tc + "timescales.slow=true"}},
      {"channel_gate", {tc + "read.gate=channel"}},
      // Its reads count from the start: nothing could be seen of them otherwise.
      {"associative", {tc + "design=associative", tc + "read.zero_output=false"}},
      {"associative_evict",
       {tc + "design=associative", tc + "read.zero_output=false", tc + "write.when=evict",
        tc + "write.decay=per_token"}},
      // Without slots: a bf16 window turns a choice between two of them here and there, which is not little. They have cases of
      // their own above.
      {"associative_all",
       {tc + "design=associative", tc + "read.zero_output=false", tc + "write.when=evict", tc + "write.decay=per_token",
        tc + "write.max_half_life=4e7", tc + "address.shift=true", tc + "read.gate=channel",
        tc + "timescales.slow=true"}}};
  // The paper's ways of training, which gated_delta is not made for.
  const std::vector<Case> chunks = {
      {"chunk_start", {tc + "write.when=chunk_start", tc + "write.chunk=4"}},
      {"chunk_mean", {tc + "write.when=chunk_mean", tc + "write.chunk=4"}},
      {"chunk_start_addressed",
       {tc + "write.when=chunk_start", tc + "write.chunk=4", tc + "address.conv=3", tc + "address.by=content",
        tc + "write.decay=per_token", tc + "write.strength=per_token"}},
      {"slots_chunk_start", {tc + "router.slots=3", tc + "write.when=chunk_start"}}};
  const std::vector<Case> features = {
      {"softmax_pair", {tc + "address.features=softmax_pair"}},
      {"softmax_pair_all",
       {tc + "address.features=softmax_pair", tc + "address.by=content", tc + "address.conv=3", tc + "router.slots=2",
        tc + "write.decay=per_token", tc + "read.normalize=true"}}};
  const std::vector<Case> normalized = {
      {"normalized_reads", {tc + "read.normalize=true", tc + "read.floor=0.01"}},
      {"normalized_slots", {tc + "read.normalize=true", tc + "router.slots=2", tc + "timescales.slow=true"}}};
  std::vector<Case> cases;
  for (const Case& rule : rules) {
    const auto add = [&](const std::vector<Case>& list) {
      for (const Case& option : list) {
        // The rule comes last: a design has one of its own.
        Case combined{rule.name + "_" + option.name, option.overrides};
        combined.overrides.insert(combined.overrides.end(), rule.overrides.begin(), rule.overrides.end());
        cases.push_back(combined);
      }
    };
    add(options);
    if (rule.name != "gated_delta") add(chunks);
    if (rule.name != "wedge") add(normalized);  // refused there
    if (rule.name == "outer") add(features);
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
       {"position_embedding=learned", "max_position_embeddings=256", "cache.tensor_cache.address.by=content"}},
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
