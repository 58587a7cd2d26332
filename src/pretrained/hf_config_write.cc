#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "core/config.h"
#include "methods/method.h"
#include "pretrained/hf_config.h"
#include "pretrained/hf_config_keys.h"

namespace tensorcache::pretrained {
namespace {

std::string WriteActivation(HfFamily family, Activation activation) {
  if (family == HfFamily::kGpt2 && activation == Activation::kGeluTanh) return "gelu_new";
  return std::string(std::ranges::find(kActivations, activation, &ActivationName::activation)->name);
}

// Why the family's architecture is not that of `config`, or "".
std::string Mismatch(HfFamily family, const ModelConfig& config) {
  const bool window = config.cache.method == CacheMethod::kWindow;
  if (family == HfFamily::kGpt2) {
    if (config.norm != NormKind::kLayerNorm) return "learned positions with rms_norm";
    if (config.gated_mlp) return "learned positions with a gated feed-forward layer";
    if (!config.attention_bias || !config.output_bias || !config.mlp_bias) return "learned positions without biases";
    if (config.num_key_value_heads != config.num_attention_heads) return "learned positions with grouped heads";
    if (config.HeadDim() * config.num_attention_heads != config.hidden_size) {
      return "learned positions with heads that are not hidden_size wide together";
    }
    return window ? "learned positions with a window" : "";
  }
  if (config.norm != NormKind::kRmsNorm) return "rotary embedding with layer_norm";
  if (!config.gated_mlp) return "rotary embedding with a feed-forward layer that is not gated";
  if (config.output_bias && !config.attention_bias) return "a bias on the attention's output alone";
  if (family != HfFamily::kLlama && config.mlp_bias) {
    return window ? "biases on the feed-forward layers with a window"
                  : "biases on the feed-forward layers and on q, k and v, but not on the attention's output";
  }
  if (family == HfFamily::kMistral && config.output_bias) return "biases on all of the attention with a window";
  return config.rope_ntk_factor != 1 ? "rope_ntk_factor other than 1" : "";
}

OrderedJson WriteScaling(const RopeScaling& scaling) {
  OrderedJson json = {{"rope_type", NameOf(scaling.rope_type)}, {"factor", scaling.factor}};
  if (scaling.rope_type != RopeScalingKind::kLlama3) return json;
  json["low_freq_factor"] = scaling.low_freq_factor;
  json["high_freq_factor"] = scaling.high_freq_factor;
  const double original = scaling.original_max_position_embeddings;
  if (original == static_cast<double>(static_cast<int64_t>(original))) {
    json["original_max_position_embeddings"] = static_cast<int64_t>(original);
  } else {
    json["original_max_position_embeddings"] = original;
  }
  return json;
}

OrderedJson WriteLlama(HfFamily family, const ModelConfig& config) {
  LlamaKeys keys{.family = family,
                 .vocab_size = config.vocab_size,
                 .hidden_size = config.hidden_size,
                 .intermediate_size = config.intermediate_size,
                 .num_hidden_layers = config.num_hidden_layers,
                 .num_attention_heads = config.num_attention_heads,
                 .num_key_value_heads = config.num_key_value_heads,
                 .max_position_embeddings = config.max_position_embeddings,
                 .hidden_act = WriteActivation(family, config.hidden_act),
                 .rms_norm_eps = config.norm_eps,
                 .attention_bias = config.attention_bias,
                 .mlp_bias = config.mlp_bias,
                 .tie_word_embeddings = config.tie_word_embeddings,
                 .rope_theta = config.rope_theta};
  if (config.head_dim > 0) keys.head_dim = config.head_dim;
  if (config.cache.method == CacheMethod::kWindow) {
    keys.sliding_window = config.cache.window;
    keys.use_sliding_window = true;
    keys.max_window_layers = 0;
  }
  OrderedJson json = ToJson(keys);
  if (config.rope_scaling.rope_type != RopeScalingKind::kNone) json["rope_scaling"] = WriteScaling(config.rope_scaling);
  if (config.rope_pairing != RopePairing::kHalfSplit) json[kOwnKey] = {{"rope_pairing", NameOf(config.rope_pairing)}};
  return json;
}

OrderedJson WriteGpt2(const ModelConfig& config) {
  return ToJson(Gpt2Keys{.vocab_size = config.vocab_size,
                         .n_positions = config.max_position_embeddings,
                         .n_embd = config.hidden_size,
                         .n_layer = config.num_hidden_layers,
                         .n_head = config.num_attention_heads,
                         .n_inner = config.intermediate_size,
                         .activation_function = WriteActivation(HfFamily::kGpt2, config.hidden_act),
                         .layer_norm_epsilon = config.norm_eps,
                         .tie_word_embeddings = config.tie_word_embeddings});
}

}  // namespace

Result<HfFamily> HfFamilyOf(const ModelConfig& config) {
  const CacheMethod method = config.cache.method;
  if (method != CacheMethod::kFull && method != CacheMethod::kWindow) {
    return Unsupported(fmt::format("Hugging Face has no architecture with cache.method {}{}", NameOf(method),
                                   methods::MethodOf(config.cache).MemoryCanBeDropped()
                                       ? "; --drop-memory exports the model without its memory, as one with a window"
                                       : ""));
  }
  const HfFamily family = config.position_embedding == PositionKind::kLearned ? HfFamily::kGpt2
                          : config.attention_bias && !config.output_bias      ? HfFamily::kQwen2
                          : method == CacheMethod::kWindow                    ? HfFamily::kMistral
                                                                              : HfFamily::kLlama;
  if (const std::string reason = Mismatch(family, config); !reason.empty()) {
    return Unsupported(fmt::format("Hugging Face has no architecture with {}", reason));
  }
  return family;
}

OrderedJson WriteHfConfig(HfFamily family, const ModelConfig& config, const HfTokens& tokens, DType dtype) {
  TC_CHECK(Mismatch(family, config).empty());
  const HfFamilyInfo& info = InfoOf(family);
  OrderedJson json = {{"architectures", {info.architecture}}, {"model_type", info.model_type}};
  const OrderedJson keys = family == HfFamily::kGpt2 ? WriteGpt2(config) : WriteLlama(family, config);
  for (const auto& [key, value] : keys.items()) {
    if (!value.is_null()) json[key] = value;
  }
  // Null rather than absent: the library's defaults are tokens of other models.
  const auto token = [](int32_t id) { return id >= 0 ? OrderedJson(id) : OrderedJson(nullptr); };
  json["bos_token_id"] = token(tokens.begin);
  json["eos_token_id"] = token(tokens.end);
  json["pad_token_id"] = token(tokens.pad);
  json["torch_dtype"] = dtype == DType::kF16 ? "float16" : dtype == DType::kBF16 ? "bfloat16" : "float32";
  return json;
}

}  // namespace tensorcache::pretrained
