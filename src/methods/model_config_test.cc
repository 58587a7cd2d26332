#include <gtest/gtest.h>

#include "core/config.h"
#include "methods/method.h"
#include "tensorcache/config.h"

namespace tensorcache {
namespace {

TEST(ModelConfig, DefaultsAreValidAndRoundTrip) {
  ModelConfig config;
  EXPECT_TRUE(ValidateModelConfig(config).ok());
  ASSERT_TRUE(ApplyOverride("cache.tensor_cache.write.rule=wedge", &config).ok());
  ASSERT_TRUE(ApplyOverride("cache.method=infini", &config).ok());
  ModelConfig read;
  const Status status = ParseConfig(Json::parse(ToJson(config).dump()), &read);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(ToJson(read), ToJson(config));
}

TEST(ModelConfig, RefusesWhatMakesNoSenseWithTheReason) {
  struct Case {
    std::vector<std::string> overrides;
    std::string reason;
  };
  const std::string tc = "cache.tensor_cache.";
  const std::vector<Case> cases = {
      {{"vocab_size=0"}, "vocab_size"},
      {{"num_attention_heads=4", "num_key_value_heads=3"}, "multiple"},
      {{"hidden_size=130"}, "head_dim"},
      {{"head_dim=7"}, "even"},
      {{"head_dim=512"}, "even width"},
      {{"rope_theta=0.5"}, "rope_theta"},
      {{"rope_ntk_factor=0.5"}, "rope_ntk_factor"},
      {{"rope_scaling.rope_type=linear", "rope_scaling.factor=0.5"}, "rope_scaling.factor"},
      {{"rope_scaling.rope_type=llama3", "rope_scaling.high_freq_factor=1"}, "high_freq_factor"},
      {{"position_embedding=learned", "cache.method=streaming_llm"}, "index in the cache"},
      {{"position_embedding=learned", "rope_ntk_factor=2"}, "no rotary embedding"},
      {{"position_embedding=learned", "rope_scaling.rope_type=linear"}, "no rotary embedding"},
      {{"cache.window=0"}, "cache.window"},
      {{"cache.method=streaming_llm", "cache.sinks=0"}, "cache.sinks"},
      {{tc + "write.lambda_init=1"}, "write.lambda_init"},
      {{tc + "write.eta_init=0"}, "write.eta_init"},
      {{tc + "router.slots=2", tc + "router.top_k=3"}, "router.top_k"},
      {{tc + "router.slots=2", tc + "write.when=chunk_mean"}, "one write per chunk"},
      {{tc + "router.slots=2", tc + "write.when=chunk_start", tc + "router.by=query"}, "router.by"},
      {{tc + "write.rule=wedge", tc + "read.normalize=true"}, "swaps keys and values"},
      {{tc + "layers=top", tc + "top_layers=9"}, "top_layers"},
      {{tc + "timescales.slow=true", tc + "timescales.lambda_init=2"}, "timescales.lambda_init"},
      {{tc + "write.value_scale=0"}, "write.value_scale"},
  };
  for (const Case& c : cases) {
    ModelConfig config;
    for (const std::string& assignment : c.overrides)
      ASSERT_TRUE(ApplyOverride(assignment, &config).ok()) << assignment;
    const Status status = ValidateModelConfig(config);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.reason;
    EXPECT_NE(status.message().find(c.reason), std::string::npos) << status.message();
  }
}

TEST(ModelConfig, OptionsOfOtherMethodsAreNotLookedAt) {
  ModelConfig config;
  config.cache.method = CacheMethod::kWindow;
  config.cache.tensor_cache.router.slots = -1;
  EXPECT_TRUE(ValidateModelConfig(config).ok());
}

// Every option as configs before the groups had it.
TEST(ModelConfig, OldKeysAreStillRead) {
  TensorCacheConfig changed;
  changed.write = {.rule = WriteRule::kDelta,
                   .when = MemoryWrite::kInsert,
                   .chunk = 7,
                   .lambda_init = 0.5,
                   .learn_lambda = false,
                   .eta_init = 0.25,
                   .learn_eta = false,
                   .value_scale = 3};
  changed.address = {.by = MemoryAddress::kContent, .normalize_queries = true, .normalize_keys = true};
  changed.read = {.gate = MemoryGate::kPerToken,
                  .gate_init = 2,
                  .learn_gate = false,
                  .zero_output = true,
                  .normalize = true,
                  .floor = 0.125};
  changed.router = {.slots = 4, .top_k = 2, .temperature = 0.5, .by = RouteBy::kQuery};
  changed.timescales = {.slow = true, .lambda_init = 0.75, .eta_init = 0.125, .alpha_init = 1};
  changed.layers = MemoryLayers::kTop;
  changed.top_layers = 3;
  const std::string old =
      R"({"rule":"delta","write":"insert","chunk":7,"lambda_init":0.5,"learn_lambda":false,"eta_init":0.25,)"
      R"("learn_eta":false,"gate":"per_token","gate_init":2.0,"learn_gate":false,"zero_output":true,)"
      R"("normalize_queries":true,"normalize_keys":true,"value_scale":3.0,"slots":4,"top_k":2,)"
      R"("router_temperature":0.5,"route_by":"query","two_timescale":true,"slow_lambda_init":0.75,)"
      R"("slow_eta_init":0.125,"alpha_init":1.0,"normalize_reads":true,"read_floor":0.125,"memory_rope":false,)"
      R"("layers":"top","top_layers":3})";
  EXPECT_EQ(ToOldJsonText(changed), old);
  TensorCacheConfig parsed, overridden;
  const Json json = Json::parse(old);
  const Status status = ParseConfig(json, &parsed);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(ToJson(parsed), ToJson(changed));
  for (const auto& [key, value] : json.items()) {
    ASSERT_TRUE(
        ApplyOverride(key + "=" + (value.is_string() ? value.get<std::string>() : value.dump()), &overridden).ok());
  }
  EXPECT_EQ(ToJson(overridden), ToJson(changed));
}

TEST(ModelConfig, OldKeysAreKnownByTheirNewOnes) {
  const std::string tc = "cache.tensor_cache.";
  for (const auto& [assignment, key] :
       {std::pair("rule=delta", "write.rule"), std::pair("write=insert", "write.when"),
        std::pair("write.when=insert", "write.when"), std::pair("memory_rope=false", "address.by"),
        std::pair("write={\"chunk\": 3}", "write"), std::pair("layers=top", "layers")}) {
    const Result<std::string> found = KeyOf(tc + assignment, ModelConfig{});
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(*found, tc + key);
  }
  EXPECT_FALSE(KeyOf(tc + "rul=delta", ModelConfig{}).ok());
  // Only today's names are offered.
  ModelConfig config;
  const Status status = ApplyOverride(tc + "nothing_like_it=1", &config);
  EXPECT_NE(status.message().find("write, address, read, router, timescales, layers, top_layers"), std::string::npos)
      << status.message();
}

bool HasMemory(const ModelConfig& config, int64_t layer) {
  return methods::MethodOf(config.cache).HasMemory(methods::PlaceOf(config, layer));
}

TEST(ModelConfig, MemoryLayersCountFromTheOutput) {
  ModelConfig config;
  config.num_hidden_layers = 3;
  config.cache.tensor_cache.layers = MemoryLayers::kTop;
  config.cache.tensor_cache.top_layers = 2;
  EXPECT_FALSE(HasMemory(config, 0));
  EXPECT_TRUE(HasMemory(config, 1));
  EXPECT_TRUE(HasMemory(config, 2));
  config.cache.tensor_cache.layers = MemoryLayers::kNone;
  EXPECT_FALSE(HasMemory(config, 2));
}

}  // namespace
}  // namespace tensorcache
