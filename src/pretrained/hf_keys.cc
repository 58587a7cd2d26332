#include "pretrained/hf_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/text.h"

namespace tensorcache::pretrained {
namespace {

// What a model is called, how it was trained, what it should do by default: nothing of it changes a logit.
constexpr auto kHarmless = std::to_array<std::string_view>({
    // where it comes from
    "architectures",
    "model_type",
    "transformers_version",
    "_name_or_path",
    "name_or_path",
    "torch_dtype",
    "dtype",
    "_commit_hash",
    "auto_map",
    "is_llama_config",
    "tokenizer_class",
    "unsloth_version",
    "unsloth_fixed",
    // tokens, which the tokenizer knows
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
    "sep_token_id",
    "mask_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "image_token_id",
    "begin_suppress_tokens",
    "suppress_tokens",
    // training
    "initializer_range",
    "attention_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "hidden_dropout",
    "residual_dropout",
    "embedding_dropout",
    "gradient_checkpointing",
    "use_bfloat16",
    "pretraining_tp",
    "output_router_logits",
    // how it is run
    "use_cache",
    "_attn_implementation",
    "attn_implementation",
    "_attn_implementation_autoset",
    "_flash_attn_2_enabled",
    "use_flash_attn",
    "torchscript",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "tf_legacy_loss",
    "chunk_size_feed_forward",
    "reorder_and_upcast_attn",
    "fused_mlp_checkpoint_lvl",
    "n_ctx",
    "predict_special_tokens",
    // generation
    "max_length",
    "min_length",
    "max_new_tokens",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "num_return_sequences",
    "output_scores",
    "return_dict_in_generate",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "task_specific_params",
    "prefix",
    // other heads than that of a language model
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "finetuning_task",
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_first_dropout",
    "is_decoder",
    "tie_encoder_decoder",
    "cross_attention_hidden_size",
    // biases that a family has or has not, whatever the config says: the tensors tell
    "attention_bias",
    "mlp_bias",
    "qkv_bias",
});

// What other models compute with, and the values that leave our function as it is.
struct NeutralKey {
  std::string_view key;
  std::string_view values;  // a JSON array
};
constexpr auto kNeutral = std::to_array<NeutralKey>({
    {"quantization_config", "[]"},
    {"compression_config", "[]"},
    {"attn_logit_softcapping", "[]"},
    {"final_logit_softcapping", "[]"},
    {"logit_softcapping", "[]"},
    {"logit_scale", "[1]"},
    {"logits_scaling", "[1]"},
    {"logits_scale", "[1]"},
    {"output_multiplier_scale", "[1]"},
    {"attention_multiplier", "[]"},
    {"attention_scale", "[]"},
    {"query_pre_attn_scalar", "[]"},
    {"embedding_multiplier", "[1]"},
    {"embedding_scale", "[1]"},
    {"scale_embedding", "[false]"},
    {"scale_emb", "[1]"},
    {"scale_depth", "[]"},
    {"dim_model_base", "[]"},
    {"residual_multiplier", "[1]"},
    {"lm_head_multiplier", "[1]"},
    {"key_multiplier", "[1]"},
    {"partial_rotary_factor", "[1]"},
    {"rotary_pct", "[1]"},
    {"rotary_dim", "[]"},
    {"rope_ratio", "[1]"},
    {"rope_interleaved", "[false]"},
    {"rope_interleave", "[false]"},
    {"use_mrope", "[false]"},
    {"use_dynamic_ntk", "[false]"},
    {"use_logn_attn", "[false]"},
    {"no_rope_layers", "[[]]"},
    {"no_rope_layer_interval", "[0]"},
    {"alibi", "[false]"},
    {"use_alibi", "[false]"},
    {"attn_temperature_tuning", "[false, 0]"},
    {"attention_chunk_size", "[]"},
    {"qk_norm", "[false]"},
    {"use_qk_norm", "[false]"},
    {"qk_layernorm", "[false]"},
    {"clip_qkv", "[]"},
    {"attention_out_bias", "[false]"},
    {"lm_head_bias", "[false]"},
    {"num_experts", "[0, 1]"},
    {"num_local_experts", "[0, 1]"},
    {"n_routed_experts", "[0]"},
    {"use_parallel_residual", "[false]"},
    {"parallel_attn", "[false]"},
    {"scale_attn_weights", "[true]"},
    {"scale_attn_by_inverse_layer_idx", "[false]"},
    {"add_cross_attention", "[false]"},
    {"is_encoder_decoder", "[false]"},
    {"pruned_heads", "[{}]"},
});

Status CheckNeutral(const NeutralKey& neutral, const Json& value) {
  const Json allowed = Json::parse(neutral.values);
  if (value.is_null() || std::ranges::find(allowed, value) != allowed.end()) return OkStatus();
  return Unsupported(fmt::format("{} is {}, which changes what the model computes and is not supported",
                                 Quoted(neutral.key),
                                 Quoted(value.dump(-1, ' ', true, Json::error_handler_t::replace))));
}

}  // namespace

Status CheckOtherKeys(const Json& config, std::span<const std::string> read, std::vector<std::string>* unknown) {
  for (const auto& [key, value] : config.items()) {
    if (std::ranges::find(read, key) != read.end()) continue;
    if (std::ranges::find(kHarmless, key) != kHarmless.end()) continue;
    if (const auto neutral = std::ranges::find(kNeutral, key, &NeutralKey::key); neutral != kNeutral.end()) {
      TC_RETURN_IF_ERROR(CheckNeutral(*neutral, value));
    } else if (!value.is_null()) {
      unknown->push_back(key);
    }
  }
  return OkStatus();
}

}  // namespace tensorcache::pretrained
