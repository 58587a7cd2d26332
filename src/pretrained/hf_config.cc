#include "pretrained/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/config.h"
#include "core/text.h"
#include "pretrained/hf_config_keys.h"
#include "pretrained/hf_keys.h"

namespace tensorcache::pretrained {
namespace {

constexpr auto kFamilies = std::to_array<HfFamilyInfo>({
    {HfFamily::kLlama, "LlamaForCausalLM", "LlamaModel", "llama", "model."},
    {HfFamily::kMistral, "MistralForCausalLM", "MistralModel", "mistral", "model."},
    {HfFamily::kQwen2, "Qwen2ForCausalLM", "Qwen2Model", "qwen2", "model."},
    {HfFamily::kGpt2, "GPT2LMHeadModel", "GPT2Model", "gpt2", "transformer."},
});

constexpr char kSliding[] = "sliding_attention", kAll[] = "full_attention";

// rope_scaling, or rope_parameters of newer files.
struct RopeKeys {
  std::optional<std::string> rope_type, type;
  std::optional<double> rope_theta, factor, low_freq_factor, high_freq_factor, original_max_position_embeddings;
  double partial_rotary_factor = 1;

  template <class V>
  void Fields(V& v) {
    v("rope_type", rope_type, "");
    v("type", type, "");
    v("rope_theta", rope_theta, "");
    v("factor", factor, "");
    v("low_freq_factor", low_freq_factor, "");
    v("high_freq_factor", high_freq_factor, "");
    v("original_max_position_embeddings", original_max_position_embeddings, "");
    v("partial_rotary_factor", partial_rotary_factor, "");
  }
};

template <class T>
std::vector<std::string> KeysOf(const T& keys) {
  std::vector<std::string> names;
  for (const ConfigKey& key : ConfigKeys(keys)) names.push_back(key.path);
  return names;
}

// Reads the keys that T has; null is as good as absent.
template <class T>
Status ReadKeys(const Json& json, T* keys) {
  Json known = Json::object();
  for (const std::string& key : KeysOf(*keys)) {
    if (const auto found = json.find(key); found != json.end() && !found->is_null()) known[key] = *found;
  }
  return ParseConfig(known, keys);
}

Status CheckGiven(std::initializer_list<std::pair<const char*, int64_t>> sizes) {
  for (const auto& [key, size] : sizes) {
    if (size == 0)
      return InvalidArgument(fmt::format("there is no {}; is this the config.json of a model?", Quoted(key)));
  }
  return OkStatus();
}

const HfFamilyInfo* FindFamily(std::string_view name, bool is_architecture) {
  for (const HfFamilyInfo& info : kFamilies) {
    if (is_architecture ? name == info.architecture || name == info.base : name == info.model_type) return &info;
  }
  return nullptr;
}

Status UnknownArchitecture(std::string_view name) {
  std::string known;
  for (const HfFamilyInfo& info : kFamilies) known += fmt::format("{}{}", known.empty() ? "" : ", ", info.architecture);
  return Unsupported(
      fmt::format("the architecture {} is not one of those that can be imported: {}", Quoted(name), known));
}

std::string TextOf(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

Result<HfFamily> ReadFamily(const Json& json) {
  const std::string model_type = TextOf(json, "model_type");
  const auto architectures = json.find("architectures");
  if (architectures != json.end() && architectures->is_array() && !architectures->empty() &&
      architectures->front().is_string()) {
    const std::string name = architectures->front().get<std::string>();
    const HfFamilyInfo* info = FindFamily(name, true);
    if (info == nullptr) return UnknownArchitecture(name);
    const HfFamilyInfo* other = FindFamily(model_type, false);
    if (other != nullptr && other != info) {
      return InvalidArgument(fmt::format("the architecture is {}, but the model_type {}; they contradict each other",
                                         Quoted(name), Quoted(model_type)));
    }
    return info->family;
  }
  if (const HfFamilyInfo* info = FindFamily(model_type, false)) return info->family;
  if (!model_type.empty()) return UnknownArchitecture(model_type);
  if (json.contains("cache") && json.contains("hidden_size")) {
    return InvalidArgument("this is a checkpoint of tensorcache already; use the folder as --model");
  }
  return InvalidArgument("there are neither 'architectures' nor a 'model_type'; is this the config.json of a model?");
}

Status ReadActivation(const char* key, std::string_view name, Activation* activation) {
  const auto found = std::ranges::find(kActivations, name, &ActivationName::name);
  if (found == kActivations.end()) {
    std::string known;
    for (const ActivationName& one : kActivations) known += fmt::format("{}{}", known.empty() ? "" : ", ", one.name);
    return Unsupported(fmt::format("{} is {}; known are {}", key, Quoted(name), known));
  }
  *activation = found->activation;
  return OkStatus();
}

// kUnsupported unless all layers attend alike. Whether they attend to a window.
Result<bool> LayersSlide(const LlamaKeys& keys, bool has_window) {
  int64_t sliding = 0;
  if (keys.layer_types.has_value()) {
    for (const std::string& type : *keys.layer_types) {
      if (type != kSliding && type != kAll) {
        return Unsupported(fmt::format("layer_types has {}; known are {} and {}", Quoted(type), kAll, kSliding));
      }
      sliding += type == kSliding;
    }
    if (std::ssize(*keys.layer_types) != keys.num_hidden_layers) {
      return InvalidArgument(
          fmt::format("layer_types has {} entries for {} layers", keys.layer_types->size(), keys.num_hidden_layers));
    }
  } else if (has_window) {
    const int64_t first = keys.family == HfFamily::kQwen2 ? std::max<int64_t>(keys.max_window_layers, 0) : 0;
    sliding = std::max<int64_t>(keys.num_hidden_layers - first, 0);
  }
  if (sliding > 0 && sliding < keys.num_hidden_layers) {
    return Unsupported(fmt::format(
        "{} of {} layers attend to a window and the others to everything ({}); all layers must be alike", sliding,
        keys.num_hidden_layers, keys.layer_types.has_value() ? "layer_types" : "max_window_layers"));
  }
  return sliding > 0;
}

// Their window counts the token itself, as ours does.
Status ReadWindow(LlamaKeys keys, const Json& json, HfModel* model) {
  model->config.cache.method = CacheMethod::kFull;
  if (keys.family == HfFamily::kMistral && !json.contains("sliding_window")) {
    keys.sliding_window = 4096;
    model->notes.push_back("config.json has no sliding_window; taken as 4096, as transformers does");
  }
  const bool wanted = keys.family == HfFamily::kMistral || keys.use_sliding_window;
  TC_ASSIGN_OR_RETURN(const bool slides, LayersSlide(keys, wanted && keys.sliding_window.has_value()));
  if (slides && !(wanted && keys.sliding_window.has_value())) {
    return InvalidArgument("layer_types names layers with a window, but the other keys give them none");
  }
  if (!slides && keys.use_sliding_window && !keys.sliding_window.has_value()) {
    return InvalidArgument("use_sliding_window is true, but there is no sliding_window");
  }
  if (slides) {
    model->config.cache.method = CacheMethod::kWindow;
    model->config.cache.window = *keys.sliding_window;
  }
  return OkStatus();
}

Status ReadScaling(const std::string& at, const RopeKeys& keys, RopeScaling* scaling) {
  const std::string type = keys.rope_type.value_or(keys.type.value_or("default"));
  const auto need = [&](const char* key, const std::optional<double>& value, double* out) {
    if (!value.has_value()) return InvalidArgument(fmt::format("{} of type {} has no '{}'", at, Quoted(type), key));
    *out = *value;
    return OkStatus();
  };
  if (type == "default") return OkStatus();
  if (type != "linear" && type != "llama3") {
    return Unsupported(fmt::format("{} is of type {}; known are default, linear and llama3", at, Quoted(type)));
  }
  TC_RETURN_IF_ERROR(need("factor", keys.factor, &scaling->factor));
  scaling->rope_type = RopeScalingKind::kLinear;
  if (type == "linear") return OkStatus();
  scaling->rope_type = RopeScalingKind::kLlama3;
  TC_RETURN_IF_ERROR(need("low_freq_factor", keys.low_freq_factor, &scaling->low_freq_factor));
  TC_RETURN_IF_ERROR(need("high_freq_factor", keys.high_freq_factor, &scaling->high_freq_factor));
  return need("original_max_position_embeddings", keys.original_max_position_embeddings,
              &scaling->original_max_position_embeddings);
}

Status ReadRope(const Json& json, const LlamaKeys& keys, HfModel* model) {
  ModelConfig& config = model->config;
  config.rope_theta = keys.rope_theta.value_or(10000);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {  // the first of them counts
    const auto found = json.find(key);
    if (found == json.end() || found->is_null() || found->empty()) continue;
    if (!found->is_object()) return InvalidArgument(fmt::format("{} must be an object", key));
    RopeKeys rope;
    if (found->contains(kAll) || found->contains(kSliding)) {
      return Unsupported(fmt::format("{} differs between kinds of layers; all layers must be alike", key));
    }
    const Status status = ReadKeys(*found, &rope);
    if (!status.ok()) return Status(status.code(), fmt::format("{}: {}", key, status.message()));
    const std::vector<std::string> known = KeysOf(rope);
    for (const auto& [name, value] : found->items()) {
      if (std::ranges::find(known, name) != known.end()) continue;
      model->notes.push_back(
          fmt::format("key {} of config.json is not known; it was ignored", Quoted(fmt::format("{}.{}", key, name))));
    }
    if (rope.partial_rotary_factor != 1) {
      return Unsupported(
          fmt::format("{}.partial_rotary_factor is {}; only 1 is supported", key, rope.partial_rotary_factor));
    }
    config.rope_theta = rope.rope_theta.value_or(config.rope_theta);
    return ReadScaling(key, rope, &config.rope_scaling);
  }
  return OkStatus();
}

// {"rope_pairing": ...}: how the tensors were arranged before they were exported, so that they come back as they were.
Status ReadOwnKey(const Json& json, ModelConfig* config) {
  const auto found = json.find(kOwnKey);
  if (found == json.end()) return OkStatus();
  const std::string pairing = found->is_object() ? TextOf(*found, "rope_pairing") : "";
  if (pairing != NameOf(RopePairing::kInterleaved))
    return InvalidArgument(fmt::format("{} is not as it was exported", kOwnKey));
  config->rope_pairing = RopePairing::kInterleaved;
  return OkStatus();
}

int64_t DefaultContext(HfFamily family) {
  return family == HfFamily::kMistral ? 131072 : family == HfFamily::kQwen2 ? 32768 : 2048;
}

Status ReadLlama(const Json& json, HfModel* model) {
  LlamaKeys keys{.family = model->family};
  TC_RETURN_IF_ERROR(ReadKeys(json, &keys));
  TC_RETURN_IF_ERROR(CheckGiven({{"vocab_size", keys.vocab_size},
                                 {"hidden_size", keys.hidden_size},
                                 {"intermediate_size", keys.intermediate_size},
                                 {"num_hidden_layers", keys.num_hidden_layers},
                                 {"num_attention_heads", keys.num_attention_heads}}));
  ModelConfig& config = model->config;
  config.vocab_size = keys.vocab_size;
  config.hidden_size = keys.hidden_size;
  config.intermediate_size = keys.intermediate_size;
  config.num_hidden_layers = keys.num_hidden_layers;
  config.num_attention_heads = keys.num_attention_heads;
  config.num_key_value_heads = keys.num_key_value_heads.value_or(keys.num_attention_heads);
  config.head_dim = keys.head_dim.value_or(0);
  config.max_position_embeddings = keys.max_position_embeddings.value_or(DefaultContext(keys.family));
  config.norm = NormKind::kRmsNorm;
  config.norm_eps = keys.rms_norm_eps;
  config.gated_mlp = true;
  config.attention_bias = keys.attention_bias || keys.family == HfFamily::kQwen2;
  config.output_bias = keys.attention_bias;
  config.mlp_bias = keys.mlp_bias;
  config.tie_word_embeddings = keys.tie_word_embeddings;
  TC_RETURN_IF_ERROR(ReadActivation("hidden_act", keys.hidden_act, &config.hidden_act));
  TC_RETURN_IF_ERROR(ReadRope(json, keys, model));
  TC_RETURN_IF_ERROR(ReadOwnKey(json, &config));
  return ReadWindow(keys, json, model);
}

Status ReadGpt2(const Json& json, HfModel* model) {
  Gpt2Keys keys;
  TC_RETURN_IF_ERROR(ReadKeys(json, &keys));
  TC_RETURN_IF_ERROR(CheckGiven(
      {{"vocab_size", keys.vocab_size}, {"n_embd", keys.n_embd}, {"n_layer", keys.n_layer}, {"n_head", keys.n_head}}));
  ModelConfig& config = model->config;
  config.vocab_size = keys.vocab_size;
  config.hidden_size = keys.n_embd;
  config.intermediate_size = keys.n_inner.value_or(4 * keys.n_embd);
  config.num_hidden_layers = keys.n_layer;
  config.num_attention_heads = config.num_key_value_heads = keys.n_head;
  config.max_position_embeddings = keys.n_positions;
  config.norm = NormKind::kLayerNorm;
  config.norm_eps = keys.layer_norm_epsilon;
  config.attention_bias = config.output_bias = config.mlp_bias = true;
  config.position_embedding = PositionKind::kLearned;
  config.tie_word_embeddings = keys.tie_word_embeddings;
  config.cache.method = CacheMethod::kFull;
  return ReadActivation("activation_function", keys.activation_function, &config.hidden_act);
}

Status CheckWhatIsNotRead(const Json& json, HfModel* model) {
  std::vector<std::string> read =
      model->family == HfFamily::kGpt2 ? KeysOf(Gpt2Keys{}) : KeysOf(LlamaKeys{.family = model->family});
  if (model->family != HfFamily::kGpt2) read.insert(read.end(), {"rope_scaling", "rope_parameters", kOwnKey});
  std::vector<std::string> unknown;
  TC_RETURN_IF_ERROR(CheckOtherKeys(json, read, &unknown));
  for (const std::string& key : unknown) {
    model->notes.push_back(fmt::format("key {} of config.json is not known; it was ignored", Quoted(key)));
  }
  return OkStatus();
}

}  // namespace

const HfFamilyInfo& InfoOf(HfFamily family) { return *std::ranges::find(kFamilies, family, &HfFamilyInfo::family); }

Result<HfModel> ReadHfConfig(const Json& json) {
  if (!json.is_object()) return InvalidArgument("not an object; is this the config.json of a model?");
  TC_ASSIGN_OR_RETURN(const HfFamily family, ReadFamily(json));
  HfModel model{.family = family};
  TC_RETURN_IF_ERROR(CheckWhatIsNotRead(json, &model));
  TC_RETURN_IF_ERROR(family == HfFamily::kGpt2 ? ReadGpt2(json, &model) : ReadLlama(json, &model));
  TC_RETURN_IF_ERROR(ValidateModelConfig(model.config));
  return model;
}

}  // namespace tensorcache::pretrained
