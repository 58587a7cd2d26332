#include "pretrained/hf_config.h"

#include <gtest/gtest.h>

#include "core/config.h"
#include "pretrained/pretrained_testing.h"

namespace tensorcache::pretrained {
namespace {

HfModel ReadOrFail(const Json& json) {
  auto model = ReadHfConfig(json);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? *model : HfModel{};
}

std::string ErrorOf(const Json& json, StatusCode code) {
  const auto model = ReadHfConfig(json);
  if (model.ok()) return "ok";
  EXPECT_EQ(model.status().code(), code) << model.status().message();
  return model.status().message();
}

// The config of a family, with some keys changed.
Json With(const Json& base, const Json& keys) {
  Json json = base;
  json.update(keys);
  return json;
}

Json Llama() { return MakeLlama({}).config; }
Json Mistral() { return MakeLlama({.architecture = "MistralForCausalLM", .model_type = "mistral"}).config; }
Json Qwen2() { return MakeLlama({.architecture = "Qwen2ForCausalLM", .model_type = "qwen2", .qkv_bias = true}).config; }
Json Gpt2() { return MakeGpt2("", DType::kF32).config; }

TEST(HfConfig, Llama) {
  const HfModel model = ReadOrFail(Llama());
  EXPECT_EQ(model.family, HfFamily::kLlama);
  EXPECT_TRUE(model.notes.empty());
  const ModelConfig& config = model.config;
  EXPECT_EQ(config.vocab_size, 19);
  EXPECT_EQ(config.hidden_size, 12);
  EXPECT_EQ(config.intermediate_size, 20);
  EXPECT_EQ(config.num_hidden_layers, 2);
  EXPECT_EQ(config.num_attention_heads, 4);
  EXPECT_EQ(config.num_key_value_heads, 2);
  EXPECT_EQ(config.head_dim, 6);
  EXPECT_EQ(config.max_position_embeddings, 64);
  EXPECT_EQ(config.norm, NormKind::kRmsNorm);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_EQ(config.hidden_act, Activation::kSilu);
  EXPECT_TRUE(config.gated_mlp);
  EXPECT_FALSE(config.attention_bias || config.output_bias || config.mlp_bias || config.tie_word_embeddings);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.rope_pairing, RopePairing::kHalfSplit);
  EXPECT_EQ(config.cache.method, CacheMethod::kFull);
}

TEST(HfConfig, WhatIsAbsentOrNullIsTheDefault) {
  Json json = Llama();
  for (const char* key : {"num_key_value_heads", "head_dim", "rope_theta", "rms_norm_eps", "hidden_act",
                          "max_position_embeddings", "tie_word_embeddings"}) {
    json.erase(key);
  }
  json["hidden_size"] = 16;
  for (int round = 0; round < 2; ++round) {
    const ModelConfig config = ReadOrFail(json).config;
    EXPECT_EQ(config.num_key_value_heads, 4);
    EXPECT_EQ(config.HeadDim(), 4);
    EXPECT_EQ(config.norm_eps, 1e-6);
    EXPECT_EQ(config.max_position_embeddings, 2048);
    EXPECT_FALSE(config.tie_word_embeddings);
    json["num_key_value_heads"] = json["head_dim"] = json["rms_norm_eps"] = json["rope_scaling"] = nullptr;
  }
}

TEST(HfConfig, BiasesActivationsAndOldNames) {
  const ModelConfig biases = ReadOrFail(With(Llama(), {{"attention_bias", true}, {"mlp_bias", true}})).config;
  EXPECT_TRUE(biases.attention_bias && biases.output_bias && biases.mlp_bias);
  const ModelConfig qwen = ReadOrFail(Qwen2()).config;
  EXPECT_TRUE(qwen.attention_bias);
  EXPECT_FALSE(qwen.output_bias);
  for (const auto& [name, activation] :
       {std::pair("swish", Activation::kSilu), std::pair("gelu", Activation::kGelu),
        std::pair("gelu_new", Activation::kGeluTanh), std::pair("gelu_pytorch_tanh", Activation::kGeluTanh)}) {
    EXPECT_EQ(ReadOrFail(With(Llama(), {{"hidden_act", name}})).config.hidden_act, activation);
  }
  EXPECT_NE(ErrorOf(With(Llama(), {{"hidden_act", "relu2"}}), StatusCode::kUnsupported).find("'relu2'"),
            std::string::npos);
}

TEST(HfConfig, Gpt2) {
  const HfModel model = ReadOrFail(Gpt2());
  EXPECT_EQ(model.family, HfFamily::kGpt2);
  EXPECT_TRUE(model.notes.empty());
  const ModelConfig& config = model.config;
  EXPECT_EQ(config.hidden_size, 12);
  EXPECT_EQ(config.intermediate_size, 20);
  EXPECT_EQ(config.num_key_value_heads, 3);
  EXPECT_EQ(config.max_position_embeddings, 11);
  EXPECT_EQ(config.position_embedding, PositionKind::kLearned);
  EXPECT_EQ(config.norm, NormKind::kLayerNorm);
  EXPECT_EQ(config.hidden_act, Activation::kGeluTanh);
  EXPECT_FALSE(config.gated_mlp);
  EXPECT_TRUE(config.attention_bias && config.output_bias && config.mlp_bias && config.tie_word_embeddings);
  Json json = Gpt2();
  json["n_inner"] = nullptr;
  json.erase("tie_word_embeddings");
  EXPECT_EQ(ReadOrFail(json).config.intermediate_size, 48);
  EXPECT_TRUE(ReadOrFail(json).config.tie_word_embeddings);
}

TEST(HfConfig, FamiliesAreFoundByArchitectureOrType) {
  Json json = Llama();
  json.erase("architectures");
  EXPECT_EQ(ReadOrFail(json).family, HfFamily::kLlama);
  json["model_type"] = "qwen2";
  EXPECT_EQ(ReadOrFail(json).family, HfFamily::kQwen2);
  json["model_type"] = "mamba";
  const std::string error = ErrorOf(json, StatusCode::kUnsupported);
  EXPECT_NE(error.find("'mamba'"), std::string::npos) << error;
  for (const char* known : {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "GPT2LMHeadModel"}) {
    EXPECT_NE(error.find(known), std::string::npos) << error;
  }
  json["architectures"] = {"GemmaForCausalLM"};
  json["model_type"] = "llama";
  EXPECT_NE(ErrorOf(json, StatusCode::kUnsupported).find("'GemmaForCausalLM'"), std::string::npos);
  json["architectures"] = {"MistralForCausalLM"};
  EXPECT_NE(ErrorOf(json, StatusCode::kInvalidArgument).find("contradict"), std::string::npos);
  json.erase("architectures");
  json.erase("model_type");
  EXPECT_NE(ErrorOf(json, StatusCode::kInvalidArgument).find("model_type"), std::string::npos);
  EXPECT_NE(ErrorOf(Json::array(), StatusCode::kInvalidArgument), "ok");
  const Json ours = Json::parse(ToJson(ModelConfig{}).dump());
  EXPECT_NE(ErrorOf(ours, StatusCode::kInvalidArgument).find("checkpoint of tensorcache already"), std::string::npos);
}

TEST(HfConfig, RopeScaling) {
  const auto scaling = [](const Json& json, const char* key = "rope_scaling") {
    return ReadOrFail(With(Llama(), {{key, json}})).config;
  };
  EXPECT_EQ(scaling({{"type", "linear"}, {"factor", 2}}).rope_scaling.rope_type, RopeScalingKind::kLinear);
  EXPECT_EQ(scaling({{"rope_type", "linear"}, {"factor", 2.5}}).rope_scaling.factor, 2.5);
  EXPECT_EQ(scaling({{"rope_type", "default"}}).rope_scaling.rope_type, RopeScalingKind::kNone);
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.5},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  const RopeScaling read = scaling(llama3).rope_scaling;
  EXPECT_EQ(read.rope_type, RopeScalingKind::kLlama3);
  EXPECT_EQ(read.factor, 8);
  EXPECT_EQ(read.low_freq_factor, 1.5);
  EXPECT_EQ(read.high_freq_factor, 4);
  EXPECT_EQ(read.original_max_position_embeddings, 8192);
  // The newer spelling, which has the base too.
  Json newer = Llama();
  newer.erase("rope_theta");
  newer["rope_parameters"] = With(llama3, {{"rope_theta", 500000.0}});
  EXPECT_EQ(ReadOrFail(newer).config.rope_theta, 500000);
  EXPECT_EQ(ReadOrFail(newer).config.rope_scaling.factor, 8);
  EXPECT_EQ(scaling({{"rope_type", "default"}, {"rope_theta", 7.0}}, "rope_parameters").rope_theta, 7);

  const auto error = [](const Json& json, StatusCode code) {
    return ErrorOf(With(Llama(), {{"rope_scaling", json}}), code);
  };
  for (const std::string type : {"yarn", "dynamic", "longrope"}) {
    EXPECT_NE(error({{"type", type}, {"factor", 2}}, StatusCode::kUnsupported).find("'" + type + "'"),
              std::string::npos);
  }
  EXPECT_NE(error({{"type", "linear"}}, StatusCode::kInvalidArgument).find("no 'factor'"), std::string::npos);
  Json cut = llama3;
  cut.erase("high_freq_factor");
  EXPECT_NE(error(cut, StatusCode::kInvalidArgument).find("no 'high_freq_factor'"), std::string::npos);
  EXPECT_NE(error({{"type", "linear"}, {"factor", "two"}}, StatusCode::kInvalidArgument).find("factor"),
            std::string::npos);
  EXPECT_NE(error({{"type", "linear"}, {"factor", 0.5}}, StatusCode::kInvalidArgument), "ok");
  EXPECT_NE(error(3, StatusCode::kInvalidArgument), "ok");
  EXPECT_NE(error({{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}, StatusCode::kUnsupported), "ok");
  EXPECT_NE(error({{"full_attention", {{"rope_type", "default"}}}}, StatusCode::kUnsupported), "ok");
  const HfModel noted = ReadOrFail(With(Llama(), {{"rope_scaling", {{"type", "default"}, {"mystery", 1}}}}));
  ASSERT_EQ(noted.notes.size(), 1u);
  EXPECT_NE(noted.notes[0].find("'rope_scaling.mystery'"), std::string::npos);
}

TEST(HfConfig, Windows) {
  const auto cache = [](const Json& base, const Json& keys) { return ReadOrFail(With(base, keys)).config.cache; };
  EXPECT_EQ(cache(Mistral(), {{"sliding_window", 16}}).method, CacheMethod::kWindow);
  EXPECT_EQ(cache(Mistral(), {{"sliding_window", 16}}).window, 16);
  EXPECT_EQ(cache(Mistral(), {{"sliding_window", nullptr}}).method, CacheMethod::kFull);
  EXPECT_TRUE(ReadOrFail(With(Mistral(), {{"sliding_window", nullptr}})).notes.empty());
  const HfModel absent = ReadOrFail(Mistral());
  EXPECT_EQ(absent.config.cache.method, CacheMethod::kWindow);
  EXPECT_EQ(absent.config.cache.window, 4096);
  ASSERT_EQ(absent.notes.size(), 1u);
  EXPECT_NE(absent.notes[0].find("4096"), std::string::npos);

  const Json off = {{"use_sliding_window", false}, {"sliding_window", 16}, {"max_window_layers", 0}};
  EXPECT_EQ(cache(Qwen2(), off).method, CacheMethod::kFull);
  const Json on = {{"use_sliding_window", true}, {"sliding_window", 16}, {"max_window_layers", 0}};
  EXPECT_EQ(cache(Qwen2(), on).window, 16);
  EXPECT_EQ(cache(Qwen2(), on).method, CacheMethod::kWindow);
  EXPECT_EQ(cache(Qwen2(), With(on, {{"max_window_layers", 2}})).method, CacheMethod::kFull);
  const auto error = [](const Json& base, const Json& keys, StatusCode code) {
    return ErrorOf(With(base, keys), code);
  };
  const std::string mixed = error(Qwen2(), With(on, {{"max_window_layers", 1}}), StatusCode::kUnsupported);
  EXPECT_NE(mixed.find("1 of 2 layers"), std::string::npos) << mixed;
  EXPECT_NE(mixed.find("max_window_layers"), std::string::npos) << mixed;
  const Json alike = {"sliding_attention", "sliding_attention"};
  EXPECT_EQ(cache(Qwen2(), With(on, {{"max_window_layers", 9}, {"layer_types", alike}})).method, CacheMethod::kWindow);
  EXPECT_EQ(cache(Llama(), {{"layer_types", {"full_attention", "full_attention"}}}).method, CacheMethod::kFull);
  EXPECT_NE(
      error(Qwen2(), With(on, {{"layer_types", {"full_attention", "sliding_attention"}}}), StatusCode::kUnsupported)
          .find("layer_types"),
      std::string::npos);
  EXPECT_NE(error(Llama(), {{"layer_types", {"linear_attention", "full_attention"}}}, StatusCode::kUnsupported)
                .find("'linear_attention'"),
            std::string::npos);
  EXPECT_NE(error(Llama(), {{"layer_types", {"full_attention"}}}, StatusCode::kInvalidArgument), "ok");
  EXPECT_NE(error(Llama(), {{"layer_types", alike}}, StatusCode::kInvalidArgument), "ok");
  EXPECT_NE(error(Qwen2(), With(off, {{"layer_types", alike}}), StatusCode::kInvalidArgument), "ok");
  EXPECT_NE(error(Qwen2(), {{"use_sliding_window", true}}, StatusCode::kInvalidArgument), "ok");
}

TEST(HfConfig, WhatChangesTheComputationIsRefusedByName) {
  const Json refused = {{"quantization_config", {{"bits", 4}}},
                        {"attn_logit_softcapping", 50.0},
                        {"final_logit_softcapping", 30.0},
                        {"partial_rotary_factor", 0.5},
                        {"attention_multiplier", 0.1},
                        {"logits_scaling", 8.0},
                        {"num_local_experts", 8},
                        {"rope_interleaved", true}};
  for (const auto& [key, value] : refused.items()) {
    const std::string error = ErrorOf(With(Llama(), {{key, value}}), StatusCode::kUnsupported);
    EXPECT_NE(error.find("'" + key + "'"), std::string::npos) << error;
  }
  EXPECT_NE(ErrorOf(With(Gpt2(), {{"scale_attn_by_inverse_layer_idx", true}}), StatusCode::kUnsupported), "ok");
  const Json neutral = {{"quantization_config", nullptr},
                        {"partial_rotary_factor", 1.0},
                        {"logits_scaling", 1},
                        {"rope_interleaved", false},
                        {"pretraining_tp", 2},
                        {"torch_dtype", "bfloat16"},
                        {"bos_token_id", 1},
                        {"_name_or_path", "x"},
                        {"some_new_key", nullptr}};
  EXPECT_TRUE(ReadOrFail(With(Llama(), neutral)).notes.empty());
  const HfModel noted = ReadOrFail(With(Llama(), {{"some_new_key", 3}}));
  ASSERT_EQ(noted.notes.size(), 1u);
  EXPECT_NE(noted.notes[0].find("'some_new_key'"), std::string::npos);
}

TEST(HfConfig, MissingAndWrongValuesAreNamed) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    Json json = Llama();
    json.erase(key);
    EXPECT_NE(ErrorOf(json, StatusCode::kInvalidArgument).find(key), std::string::npos);
    json[key] = "many";
    EXPECT_NE(ErrorOf(json, StatusCode::kInvalidArgument).find(key), std::string::npos);
  }
  for (const char* key : {"vocab_size", "n_embd", "n_layer", "n_head"}) {
    Json json = Gpt2();
    json.erase(key);
    EXPECT_NE(ErrorOf(json, StatusCode::kInvalidArgument).find(key), std::string::npos);
  }
  EXPECT_NE(ErrorOf(With(Llama(), {{"num_key_value_heads", 3}}), StatusCode::kInvalidArgument), "ok");
  EXPECT_NE(ErrorOf(With(Llama(), {{"hidden_size", -12}}), StatusCode::kInvalidArgument), "ok");
  EXPECT_NE(ErrorOf(With(Llama(), {{"tensorcache", 1}}), StatusCode::kInvalidArgument), "ok");
}

TEST(HfConfig, WhatIsWrittenIsReadAgain) {
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.5},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  for (const Json& json :
       {Llama(), With(Llama(), {{"attention_bias", true}, {"mlp_bias", true}, {"tie_word_embeddings", true}}),
        With(Llama(), {{"rope_scaling", llama3}, {"rope_theta", 5e5}, {"hidden_act", "gelu_new"}}),
        With(Llama(),
             {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}, {"head_dim", nullptr}, {"hidden_size", 16}}),
        With(Llama(), {{"tensorcache", {{"rope_pairing", "interleaved"}}}}), With(Mistral(), {{"sliding_window", 16}}),
        With(Qwen2(), {{"use_sliding_window", false}}),
        With(Qwen2(), {{"use_sliding_window", true}, {"sliding_window", 5}, {"max_window_layers", 0}}), Gpt2(),
        With(Gpt2(), {{"tie_word_embeddings", false}, {"activation_function", "gelu"}})}) {
    const HfModel model = ReadOrFail(json);
    const auto family = HfFamilyOf(model.config);
    ASSERT_TRUE(family.ok()) << family.status().message();
    EXPECT_EQ(*family, model.family);
    const Json written = Json::parse(WriteHfConfig(*family, model.config, {.begin = 1}, DType::kBF16).dump());
    const HfModel again = ReadOrFail(written);
    EXPECT_EQ(ToJson(again.config), ToJson(model.config));
    EXPECT_TRUE(again.notes.empty());
    EXPECT_EQ(written["bos_token_id"], 1);
    EXPECT_TRUE(written["eos_token_id"].is_null());
    EXPECT_EQ(written["torch_dtype"], "bfloat16");
  }
}

TEST(HfConfig, WhatHuggingFaceDoesNotHaveIsRefusedWithTheReason) {
  const ModelConfig llama = ReadOrFail(Llama()).config, gpt2 = ReadOrFail(Gpt2()).config;
  const auto reason = [](ModelConfig config, const std::vector<std::string>& changes) {
    for (const std::string& change : changes) EXPECT_TRUE(ApplyOverride(change, &config).ok()) << change;
    const auto family = HfFamilyOf(config);
    if (family.ok()) return std::string("ok");
    EXPECT_EQ(family.status().code(), StatusCode::kUnsupported);
    return family.status().message();
  };
  EXPECT_EQ(reason(llama, {}), "ok");
  EXPECT_NE(reason(llama, {"norm=layer_norm"}).find("layer_norm"), std::string::npos);
  EXPECT_NE(reason(llama, {"gated_mlp=false"}).find("not gated"), std::string::npos);
  EXPECT_NE(reason(llama, {"output_bias=true"}).find("output"), std::string::npos);
  EXPECT_NE(reason(llama, {"rope_ntk_factor=2"}).find("rope_ntk_factor"), std::string::npos);
  EXPECT_NE(reason(llama, {"cache.method=streaming_llm"}).find("streaming_llm"), std::string::npos);
  EXPECT_NE(reason(llama, {"cache.method=infini"}).find("infini"), std::string::npos);
  EXPECT_NE(reason(llama, {"cache.method=tensor_cache"}).find("--drop-memory"), std::string::npos);
  EXPECT_NE(reason(llama, {"cache.method=window", "mlp_bias=true"}).find("window"), std::string::npos);
  EXPECT_NE(reason(llama, {"cache.method=window", "attention_bias=true", "output_bias=true"}).find("window"),
            std::string::npos);
  EXPECT_NE(reason(llama, {"attention_bias=true", "mlp_bias=true"}).find("feed-forward"), std::string::npos);
  EXPECT_EQ(reason(gpt2, {}), "ok");
  EXPECT_NE(reason(gpt2, {"cache.method=window"}).find("window"), std::string::npos);
  EXPECT_NE(reason(gpt2, {"norm=rms_norm"}).find("rms_norm"), std::string::npos);
  EXPECT_NE(reason(gpt2, {"gated_mlp=true"}).find("gated"), std::string::npos);
  EXPECT_NE(reason(gpt2, {"mlp_bias=false"}).find("biases"), std::string::npos);
  EXPECT_NE(reason(gpt2, {"num_key_value_heads=1"}).find("grouped"), std::string::npos);
  EXPECT_NE(reason(gpt2, {"head_dim=8"}).find("hidden_size"), std::string::npos);
}

}  // namespace
}  // namespace tensorcache::pretrained
