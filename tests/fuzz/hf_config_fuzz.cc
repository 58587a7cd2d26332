// config.json of Hugging Face: an error, or a valid model whose config.json of ours is read as the same.
#include "core/config.h"
#include "pretrained/hf_config.h"
#include "tests/fuzz/driver.h"

namespace tensorcache::fuzz {
namespace {

using pretrained::HfFamilyOf;
using pretrained::ReadHfConfig;

void CheckWrittenReadsBack(const ModelConfig& config) {
  const auto family = HfFamilyOf(config);
  if (!family.ok()) return CheckMessage(family.status());
  const std::string text = WriteHfConfig(*family, config, {}, DType::kF32).dump();
  const auto json = ParseJson(text, "written");
  TC_CHECK(json.ok());
  const auto model = ReadHfConfig(*json);
  TC_CHECK(model.ok());
  TC_CHECK(ToJson(model->config).dump() == ToJson(config).dump());
}

}  // namespace

void Run(std::string_view input) {
  const auto json = ParseJson(input, "config.json");
  if (!json.ok()) return CheckMessage(json.status());
  const auto model = ReadHfConfig(*json);
  if (!model.ok()) return CheckMessage(model.status());
  TC_CHECK(ValidateModelConfig(model->config).ok());
  for (const std::string& note : model->notes) TC_CHECK(note.find('\n') == std::string::npos);
  CheckWrittenReadsBack(model->config);
}

std::vector<std::string> Seeds() {
  const std::string sizes = R"("vocab_size":9,"hidden_size":8,"intermediate_size":6,"num_hidden_layers":2,)"
                            R"("num_attention_heads":2,"num_key_value_heads":1,"rms_norm_eps":1e-5)";
  return {
      R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","rope_scaling":{"rope_type":"llama3","factor":8,)"
      R"("low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":8192},"attention_bias":true,)" +
          sizes + "}",
      R"({"model_type":"mistral","sliding_window":16,"head_dim":4,"hidden_act":"silu",)" + sizes + "}",
      R"({"model_type":"qwen2","use_sliding_window":true,"sliding_window":4,"max_window_layers":0,)"
      R"("layer_types":["sliding_attention","sliding_attention"],)" +
          sizes + "}",
      R"({"model_type":"gpt2","vocab_size":9,"n_embd":8,"n_layer":2,"n_head":2,"n_positions":16,"n_inner":null})",
      R"({"model_type":"llama","rope_parameters":{"rope_type":"linear","factor":2,"rope_theta":500000.0},)"
      R"("tensorcache":{"rope_pairing":"interleaved"},)" +
          sizes + "}"};
}

std::vector<std::string> Words() {
  return {R"("architectures":[)",
          R"("model_type":)",
          R"("rope_scaling":{)",
          R"("rope_parameters":{)",
          R"("rope_theta":)",
          R"("factor":)",
          R"("head_dim":)",
          R"("sliding_window":)",
          R"("use_sliding_window":true)",
          R"("max_window_layers":)",
          R"("layer_types":[)",
          R"("full_attention")",
          R"("sliding_attention")",
          R"("tie_word_embeddings":true)",
          R"("attention_bias":true)",
          R"("mlp_bias":true)",
          R"("hidden_act":"gelu_new")",
          R"("n_inner":)",
          R"("partial_rotary_factor":)",
          R"("tensorcache":{"rope_pairing":"interleaved"})",
          R"("linear")",
          "null",
          "1e6",
          "16777216",
          "9223372036854775807",
          "-1"};
}

}  // namespace tensorcache::fuzz
