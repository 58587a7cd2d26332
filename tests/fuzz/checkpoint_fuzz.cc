// A checkpoint folder of ours: an error, or a model that reads text.
#include "core/config.h"
#include "core/model_files.h"
#include "tests/fuzz/model_checks.h"

namespace tensorcache::fuzz {
namespace {

ModelOptions OptionsOf(char choice) {
  constexpr WeightType kWeights[] = {WeightType::kFp32, WeightType::kBf16, WeightType::kInt8};
  ModelOptions options{.weights = kWeights[static_cast<uint8_t>(choice) % 3]};
  if (choice & 0x10) options.ring = RingType::kBf16;
  if (choice & 0x20) options.cache = CacheConfig{.method = CacheMethod::kWindow, .window = 2};
  return options;
}

}  // namespace

// A byte that picks the options, config.json, and header and data of model.safetensors.
void Run(std::string_view input) {
  if (input.empty()) return;
  const auto parts = Split(input.substr(1), 3);
  Put(kConfigFile, parts[0]);
  Put(kModelFile, JoinSafetensors(parts[1], parts[2]));
  if (const Status status = TryModel(Folder(), OptionsOf(input[0])); !status.ok()) CheckMessage(status);
}

std::vector<std::string> Seeds() {
  std::vector<ModelConfig> configs(5, SmallModel());
  configs[1].cache.tensor_cache = {.write = {.rule = WriteRule::kDelta},
                                   .address = {.by = MemoryAddress::kContent},
                                   .read = {.gate = MemoryGate::kPerToken, .normalize = true},
                                   .router = {.slots = 2, .top_k = 2},
                                   .timescales = {.slow = true}};
  configs[2].cache.method = CacheMethod::kInfini;
  configs[2].norm = NormKind::kLayerNorm;
  configs[2].gated_mlp = true;
  configs[3].cache.method = CacheMethod::kWindow;
  configs[3].position_embedding = PositionKind::kLearned;
  configs[3].max_position_embeddings = 6;
  configs[3].attention_bias = configs[3].output_bias = configs[3].mlp_bias = true;
  configs[4].cache = {.method = CacheMethod::kStreamingLlm, .window = 2, .sinks = 2};
  configs[4].tie_word_embeddings = false;
  configs[4].rope_scaling = {.rope_type = RopeScalingKind::kLlama3, .factor = 4};
  std::vector<std::string> seeds;
  for (const ModelConfig& config : configs) {
    const SplitSafetensors tensors = MakeSafetensors(TensorsOf(config));
    seeds.push_back("3" + Join({ToJson(config).dump(), tensors.header, tensors.data}));
    Run(seeds.back());
    TC_CHECK(TryModel(Folder(), {}).ok());  // the tensors are what they are taken for here
  }
  // The same model as [1], in the keys of config.json that came before groups of options.
  const SplitSafetensors tensors = MakeSafetensors(TensorsOf(configs[1]));
  seeds.push_back("3" + Join({ToOldJsonText(configs[1]), tensors.header, tensors.data}));
  Run(seeds.back());
  TC_CHECK(TryModel(Folder(), {}).ok());
  return seeds;
}

std::vector<std::string> Words() {
  return {R"("dtype":"BF16")",
          R"("dtype":"F16")",
          R"("dtype":"I64")",
          R"("method":"full")",
          R"("method":"window")",
          R"("window":)",
          R"("slots":)",
          R"("top_k":)",
          R"("layers":"none")",
          R"("rule":"wedge")",
          R"("when":"insert")",
          R"("head_dim":)",
          R"("rope_theta":)",
          R"("rope_ntk_factor":)",
          R"("rope_type":"linear")",
          R"("interleaved")",
          R"("normalize_keys":true)",
          "1e12",
          "16777216",
          "1099511627776",
          "-1",
          std::string(1, '\0'),
          R"("write":"insert")",
          R"("two_timescale":true)",
          R"("memory_rope":false)"};
}

}  // namespace tensorcache::fuzz
