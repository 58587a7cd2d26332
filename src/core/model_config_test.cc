#include <gtest/gtest.h>

#include "core/config.h"
#include "tensorcache/config.h"

namespace tensorcache {
namespace {

TEST(ModelConfig, DefaultsAreValidAndRoundTrip) {
  ModelConfig config;
  EXPECT_TRUE(ValidateModelConfig(config).ok());
  ASSERT_TRUE(ApplyOverride("cache.tensor_cache.rule=wedge", &config).ok());
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
      {{tc + "lambda_init=1"}, "lambda_init"},
      {{tc + "eta_init=0"}, "eta_init"},
      {{tc + "slots=2", tc + "top_k=3"}, "top_k"},
      {{tc + "slots=2", tc + "write=chunk_mean"}, "one write per chunk"},
      {{tc + "slots=2", tc + "write=chunk_start", tc + "route_by=query"}, "route_by"},
      {{tc + "rule=wedge", tc + "normalize_reads=true"}, "swaps keys and values"},
      {{tc + "layers=top", tc + "top_layers=9"}, "top_layers"},
      {{tc + "two_timescale=true", tc + "slow_lambda_init=2"}, "slow_lambda_init"},
      {{tc + "value_scale=0"}, "value_scale"},
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
  config.cache.tensor_cache.slots = -1;
  EXPECT_TRUE(ValidateModelConfig(config).ok());
}

TEST(ModelConfig, MemoryLayersCountFromTheOutput) {
  ModelConfig config;
  config.num_hidden_layers = 3;
  config.cache.tensor_cache.layers = MemoryLayers::kTop;
  config.cache.tensor_cache.top_layers = 2;
  EXPECT_FALSE(config.HasTensorCache(0));
  EXPECT_TRUE(config.HasTensorCache(1));
  EXPECT_TRUE(config.HasTensorCache(2));
  config.cache.tensor_cache.layers = MemoryLayers::kNone;
  EXPECT_FALSE(config.HasTensorCache(2));
}

}  // namespace
}  // namespace tensorcache
