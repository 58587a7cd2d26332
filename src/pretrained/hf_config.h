// config.json as Hugging Face writes it, and ours: both ways.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/safetensors.h"
#include "tensorcache/config.h"
#include "tensorcache/status.h"

namespace tensorcache::pretrained {

// Architectures that share names and layout of tensors and keys of config.json.
enum class HfFamily { kLlama, kMistral, kQwen2, kGpt2 };

struct HfFamilyInfo {
  HfFamily family;
  std::string_view architecture;  // "LlamaForCausalLM"
  std::string_view base;          // the same without the output projection: "LlamaModel"
  std::string_view model_type;    // "llama"
  std::string_view prefix;        // of the names of tensors but lm_head.weight
};
const HfFamilyInfo& InfoOf(HfFamily family);

struct HfModel {
  HfFamily family;
  ModelConfig config;              // valid
  std::vector<std::string> notes;  // what a user should know: keys that were ignored, defaults that were taken
};

// What the model computes according to `json`. kUnsupported names an architecture, a kind of rotary scaling or a key that
// we do not have; kInvalidArgument what is missing or of the wrong type. Messages do not name the file.
Result<HfModel> ReadHfConfig(const Json& json);

// The family that computes what `config` says; kUnsupported tells why there is none.
Result<HfFamily> HfFamilyOf(const ModelConfig& config);

struct HfTokens {
  int32_t begin = -1, end = -1, pad = -1;  // -1: none
};
// A config.json of this family for `config`, which must be one of the family's. ReadHfConfig of it gives `config`, but for
// options of cache methods that it does not use.
OrderedJson WriteHfConfig(HfFamily family, const ModelConfig& config, const HfTokens& tokens, DType dtype);

}  // namespace tensorcache::pretrained
