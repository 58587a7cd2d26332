"""Small models of every family that is imported, with random weights."""

import json

import models
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers import CONFIG_MAPPING, Qwen2Config, Qwen2ForCausalLM

# Odd where that is possible, so that no two sizes can be mistaken for each other.
SIZES = dict(
    vocab_size=131, hidden_size=72, intermediate_size=112, num_hidden_layers=3, num_attention_heads=6,
    num_key_value_heads=2, max_position_embeddings=512,
)  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def llama(seed=1, **options):
    return models.randomise(LlamaForCausalLM(LlamaConfig(**{**SIZES, "rms_norm_eps": 1e-5, **options})), seed)


def qwen2(seed=2, **options):
    return models.randomise(Qwen2ForCausalLM(Qwen2Config(**{**SIZES, "rms_norm_eps": 1e-6, **options})), seed)


def mistral(seed=3, **options):
    return models.randomise(
        MistralForCausalLM(MistralConfig(**{**SIZES, "head_dim": 20, "sliding_window": 48, **options})), seed
    )


def gpt2(seed=4, **options):
    sizes = dict(
        vocab_size=131, n_positions=320, n_embd=60, n_layer=3, n_head=5, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    return models.randomise(GPT2LMHeadModel(GPT2Config(**{**sizes, **options})), seed)


def save(model, folder, dtype=torch.float32, **options):
    """As transformers saves it. Both sides read the file: what a smaller type rounds away is missing in both."""
    model.to(dtype).save_pretrained(folder, **options)
    return folder


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def change_config(folder, change):
    config = config_of(folder)
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def older_config(config):
    """As transformers wrote it before version 5, and as most published folders have it."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")


def oldest_config(config):
    """As Llama 1 and 2 were published: what has a default now was not there then."""
    rope = config.pop("rope_parameters")
    if rope["rope_type"] != "default":
        config["rope_scaling"] = {"type": rope["rope_type"], "factor": rope["factor"]}
    config["torch_dtype"] = config.pop("dtype")
    for key in ("head_dim", "attention_bias", "mlp_bias"):
        config.pop(key, None)


def without_defaults(config):
    """Only what differs from the family's defaults: a config may leave out the rest."""
    defaults = CONFIG_MAPPING[config["model_type"]]().to_dict()
    for key in [key for key in config if key not in ("architectures", "model_type")]:
        if key in defaults and config[key] == defaults[key]:
            del config[key]
    if config.get("head_dim") == SIZES["hidden_size"] // SIZES["num_attention_heads"]:
        del config["head_dim"]
    if config.get("num_key_value_heads") == SIZES["num_attention_heads"] and config["model_type"] == "llama":
        del config["num_key_value_heads"]
