// The keys of config.json that are read and written, and names of values in it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pretrained/hf_config.h"
#include "tensorcache/choices.h"

namespace tensorcache::pretrained {

// Our own key, for what Hugging Face's do not say. Their library carries it along.
inline constexpr char kOwnKey[] = "tensorcache";

// Keys of the Llama kind. Absent and null mean the values here, as in the libraries that read them.
struct LlamaKeys {
  HfFamily family = HfFamily::kLlama;
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_hidden_layers = 0, num_attention_heads = 0;
  std::optional<int64_t> num_key_value_heads, head_dim, max_position_embeddings;
  std::string hidden_act = "silu";
  double rms_norm_eps = 1e-6;
  bool attention_bias = false, mlp_bias = false, tie_word_embeddings = false;
  std::optional<double> rope_theta;
  std::optional<int64_t> sliding_window;
  bool use_sliding_window = false;
  int64_t max_window_layers = 28;
  std::optional<std::vector<std::string>> layer_types;

  template <class V>
  void Fields(V& v) {
    v("vocab_size", vocab_size, "");
    v("hidden_size", hidden_size, "");
    v("intermediate_size", intermediate_size, "");
    v("num_hidden_layers", num_hidden_layers, "");
    v("num_attention_heads", num_attention_heads, "");
    v("num_key_value_heads", num_key_value_heads, "");
    v("head_dim", head_dim, "");
    v("max_position_embeddings", max_position_embeddings, "");
    v("hidden_act", hidden_act, "");
    v("rms_norm_eps", rms_norm_eps, "");
    if (family == HfFamily::kLlama) {
      v("attention_bias", attention_bias, "");
      v("mlp_bias", mlp_bias, "");
    } else {
      v("sliding_window", sliding_window, "");
    }
    if (family == HfFamily::kQwen2) {
      v("use_sliding_window", use_sliding_window, "");
      v("max_window_layers", max_window_layers, "");
    }
    v("layer_types", layer_types, "");
    v("rope_theta", rope_theta, "");
    v("tie_word_embeddings", tie_word_embeddings, "");
  }
};

struct Gpt2Keys {
  int64_t vocab_size = 0, n_positions = 1024, n_embd = 0, n_layer = 0, n_head = 0;
  std::optional<int64_t> n_inner;
  std::string activation_function = "gelu_new";
  double layer_norm_epsilon = 1e-5;
  bool tie_word_embeddings = true;

  template <class V>
  void Fields(V& v) {
    v("vocab_size", vocab_size, "");
    v("n_positions", n_positions, "");
    v("n_embd", n_embd, "");
    v("n_layer", n_layer, "");
    v("n_head", n_head, "");
    v("n_inner", n_inner, "");
    v("activation_function", activation_function, "");
    v("layer_norm_epsilon", layer_norm_epsilon, "");
    v("tie_word_embeddings", tie_word_embeddings, "");
  }
};

struct ActivationName {
  std::string_view name;
  Activation activation;
};
// The first of each is what is written; of gelu_tanh, the second for GPT-2.
inline constexpr auto kActivations = std::to_array<ActivationName>({{"silu", Activation::kSilu},
                                                                    {"swish", Activation::kSilu},
                                                                    {"gelu", Activation::kGelu},
                                                                    {"gelu_python", Activation::kGelu},
                                                                    {"gelu_pytorch_tanh", Activation::kGeluTanh},
                                                                    {"gelu_new", Activation::kGeluTanh},
                                                                    {"gelu_fast", Activation::kGeluTanh}});

}  // namespace tensorcache::pretrained
