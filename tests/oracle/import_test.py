"""Folders that transformers has written, imported by us: logits, NLL and greedy text against transformers."""

import common
import families
import models
import torch
from families import (
    LLAMA3_ROPE,
    change_config,
    config_of,
    gpt2,
    llama,
    mistral,
    older_config,
    oldest_config,
    qwen2,
    save,
)
from families import without_defaults
from safetensors.torch import load_file, save_file

TOKENS = 300


class FamilyTest(models.ModelTest):
    def check(self, model, rope=True, change=None, **options):
        folder = save(model, self.folder / "original", **options)
        if change:
            change_config(folder, change)
        theirs = models.load(folder)
        tokens = models.random_tokens(theirs.config.vocab_size, TOKENS, seed=5)
        self.check_model(self.imported(folder), theirs, tokens, rope)
        return folder


class Llama(FamilyTest):
    def test_grouped_queries_tied(self):
        self.check(llama(tie_word_embeddings=True))

    def test_own_output_matrix(self):
        self.check(llama(tie_word_embeddings=False))

    def test_one_key_head(self):
        self.check(llama(num_key_value_heads=1))

    def test_as_many_key_heads_as_query_heads(self):
        self.check(llama(num_key_value_heads=6))

    def test_head_dim(self):
        self.check(llama(head_dim=20))

    def test_biases(self):
        self.check(llama(attention_bias=True, mlp_bias=True))

    def test_rope_theta(self):
        self.check(llama(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}))

    def test_norm_epsilon(self):
        self.check(llama(rms_norm_eps=0.05))

    def test_llama3_rope(self):
        self.check(llama(rope_parameters=dict(LLAMA3_ROPE)))

    def test_linear_rope(self):
        self.check(llama(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}))

    def test_older_config(self):
        self.check(llama(), change=older_config)

    def test_older_config_with_llama3_rope(self):
        self.check(llama(rope_parameters=dict(LLAMA3_ROPE)), change=older_config)

    def test_older_config_with_linear_rope(self):
        rope = {"rope_type": "linear", "rope_theta": 20000.0, "factor": 3.0}
        self.check(llama(rope_parameters=rope), change=older_config)

    def test_oldest_config(self):
        self.check(llama(), change=oldest_config)
        with self.subTest("linear rope"):
            rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}
            self.check(llama(rope_parameters=rope), change=oldest_config)

    def test_defaults(self):
        model = llama(num_key_value_heads=6, rms_norm_eps=1e-6, max_position_embeddings=2048)
        left = set(config_of(self.check(model, change=without_defaults)))
        self.assertFalse(
            left & {"num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "rope_parameters"}, left
        )
        self.assertFalse(left & {"head_dim", "hidden_act", "tie_word_embeddings", "attention_bias"}, left)

    def test_types_that_differ(self):
        """Norms in F32, matrices in BF16, embeddings in F16."""
        folder = save(llama(), self.folder / "original", dtype=torch.bfloat16)
        tensors = {
            name: t.float() if "norm" in name else t.half() if "embed" in name else t.clone()
            for name, t in load_file(folder / "model.safetensors").items()
        }
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        tokens = models.random_tokens(131, TOKENS, seed=5)
        self.check_model(self.imported(folder), models.load(folder), tokens)

    def test_f16(self):
        self.check(llama(), dtype=torch.float16)

    def test_bf16(self):
        self.check(llama(), dtype=torch.bfloat16)

    def test_shards(self):
        folder = self.check(llama(tie_word_embeddings=False), max_shard_size="100KB")
        self.assertGreater(len(list(folder.glob("model-*.safetensors"))), 3)

    def test_bf16_shards_with_everything(self):
        folder = self.check(
            llama(tie_word_embeddings=True, head_dim=20, attention_bias=True, rope_parameters=dict(LLAMA3_ROPE)),
            dtype=torch.bfloat16,
            max_shard_size="60KB",
        )
        self.assertGreater(len(list(folder.glob("model-*.safetensors"))), 3)


class Qwen2(FamilyTest):
    def test_tied(self):
        self.check(qwen2(tie_word_embeddings=True))

    def test_own_output_matrix(self):
        self.check(qwen2(tie_word_embeddings=False))

    def test_older_config(self):
        rope = {"rope_type": "default", "rope_theta": 1000000.0}
        self.check(qwen2(rope_parameters=rope), change=older_config)

    def test_defaults(self):
        left = set(config_of(self.check(qwen2(max_position_embeddings=32768), change=without_defaults)))
        self.assertFalse(left & {"rms_norm_eps", "use_sliding_window", "sliding_window", "max_window_layers"}, left)

    def test_window_that_is_switched_off(self):
        """As Qwen 2.5 is published: a sliding window stands in the config, and is not used."""

        def change(config):
            older_config(config)
            config.pop("layer_types", None)
            config.update(sliding_window=32, use_sliding_window=False, max_window_layers=1)

        self.check(qwen2(), change=change)

    def test_bf16(self):
        self.check(qwen2(), dtype=torch.bfloat16)


class Mistral(FamilyTest):
    def test_window_shorter_than_the_text(self):
        self.check(mistral())

    def test_window_longer_than_the_text(self):
        self.check(mistral(sliding_window=400))

    def test_no_window(self):
        self.check(mistral(sliding_window=None))

    def test_older_config(self):
        self.check(mistral(), change=older_config)

    def test_defaults(self):
        """A Mistral whose config does not speak of a window has one of 4096."""
        model = mistral(sliding_window=4096, num_key_value_heads=6, head_dim=12)
        folder = self.check(model, change=without_defaults)
        self.assertFalse(set(config_of(folder)) & {"sliding_window", "rms_norm_eps", "head_dim"})
        cache = config_of(self.imported(folder))["cache"]
        self.assertEqual((cache["method"], cache["window"]), ("window", 4096))

    def test_bf16_shards(self):
        self.check(mistral(), dtype=torch.bfloat16, max_shard_size="60KB")


class Gpt2(FamilyTest):
    def test_plain(self):
        self.check(gpt2(), rope=False)

    def test_inner_width(self):
        self.check(gpt2(n_inner=92), rope=False)

    def test_activations(self):
        for activation in ("gelu", "gelu_new", "gelu_pytorch_tanh", "silu"):
            with self.subTest(activation):
                self.check(gpt2(activation_function=activation), rope=False)

    def test_norm_epsilon(self):
        self.check(gpt2(layer_norm_epsilon=0.05), rope=False)

    def test_defaults(self):
        left = set(config_of(self.check(gpt2(n_positions=1024), rope=False, change=without_defaults)))
        self.assertFalse(left & {"n_positions", "n_inner", "activation_function", "layer_norm_epsilon"}, left)

    def test_f16_shards(self):
        self.check(gpt2(), rope=False, dtype=torch.float16, max_shard_size="60KB")

    def test_names_without_prefix(self):
        """As GPT-2 itself is published: without `transformer.`, and with the attention's masks among the tensors."""
        folder, theirs = save(gpt2(), self.folder / "original"), gpt2()
        tensors = {name.removeprefix("transformer."): t for name, t in load_file(folder / "model.safetensors").items()}
        mask = torch.tril(torch.ones(320, 320)).view(1, 1, 320, 320)
        tensors.update({f"h.{layer}.attn.bias": mask.clone() for layer in range(3)})
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        self.check_model(self.imported(folder), theirs, models.random_tokens(131, TOKENS, seed=5), rope=False)

    def test_ends_at_its_last_position(self):
        """All 320 positions, and not one more."""
        folder = save(gpt2(), self.folder / "original")
        ours, tokens = self.imported(folder), models.random_tokens(131, 320, seed=6)
        self.check_logits(self.probe_logits(ours, tokens), models.logits_of(models.load(folder), tokens), rope=False)
        with self.assertRaises(AssertionError):
            self.probe_logits(ours, tokens + [0])


class Refused(models.ModelTest):
    """What we would run wrongly is refused by name, and leaves no folder behind."""

    def check_refused(self, folder, *words):
        message = self.tensorcache_error("import", "--from", folder, "--out", self.folder / "imported")
        for word in words:
            self.assertIn(word, message)
        self.assertEqual(len(message.strip().splitlines()), 1, message)
        self.assertFalse((self.folder / "imported").exists())

    def check_changed(self, model, words, **values):
        """`model` with another config."""
        folder = save(model, self.folder / "original")
        change_config(folder, lambda config: config.update(values))
        self.check_refused(folder, *words)

    def test_unknown_architecture(self):
        from transformers import GemmaConfig, GemmaForCausalLM

        config = GemmaConfig(**families.SIZES, head_dim=16, bos_token_id=1, eos_token_id=2, pad_token_id=0)
        self.check_refused(save(GemmaForCausalLM(config), self.folder / "original"), "Gemma")

    def test_mixture_of_experts(self):
        from transformers import MixtralConfig, MixtralForCausalLM

        self.check_refused(
            save(MixtralForCausalLM(MixtralConfig(**families.SIZES)), self.folder / "original"), "Mixtral"
        )

    def test_yarn(self):
        rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
        self.check_refused(save(llama(rope_parameters=rope), self.folder / "original"), "yarn")

    def test_dynamic_rope_of_older_configs(self):
        folder = save(llama(), self.folder / "original")
        change_config(folder, older_config)
        change_config(folder, lambda config: config.update(rope_scaling={"type": "dynamic", "factor": 2.0}))
        self.check_refused(folder, "dynamic")

    def test_activation(self):
        self.check_changed(llama(), ["relu"], hidden_act="relu")

    def test_window_of_some_layers(self):
        folder = save(qwen2(use_sliding_window=True, sliding_window=32, max_window_layers=1), self.folder / "original")
        self.assertEqual(len(set(config_of(folder)["layer_types"])), 2)
        self.check_refused(folder, "window")

    def test_attention_scaled_by_layer(self):
        self.check_changed(gpt2(), ["scale_attn_by_inverse_layer_idx"], scale_attn_by_inverse_layer_idx=True)

    def test_attention_not_scaled(self):
        self.check_changed(gpt2(), ["scale_attn_weights"], scale_attn_weights=False)

    def test_missing_tensor(self):
        folder = save(llama(), self.folder / "original")
        tensors = load_file(folder / "model.safetensors")
        del tensors["model.layers.1.mlp.up_proj.weight"]
        save_file(tensors, folder / "model.safetensors")
        self.check_refused(folder, "model.layers.1.mlp.up_proj.weight")

    def test_surplus_tensor(self):
        folder = save(llama(), self.folder / "original")
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.1.self_attn.q_norm.weight"] = torch.ones(12)
        save_file(tensors, folder / "model.safetensors")
        self.check_refused(folder, "model.layers.1.self_attn.q_norm.weight")

    def test_bias_that_the_config_does_not_tell_of(self):
        folder = save(llama(attention_bias=True), self.folder / "original")
        change_config(folder, lambda config: config.update(attention_bias=False))
        self.check_refused(folder, "q_proj.bias")

    def test_type_of_a_tensor(self):
        folder = save(llama(), self.folder / "original")
        tensors = {name: t.clone() for name, t in load_file(folder / "model.safetensors").items()}
        tensors["model.norm.weight"] = tensors["model.norm.weight"].double()
        save_file(tensors, folder / "model.safetensors")
        self.check_refused(folder, "model.norm.weight", "F64")

    def test_pickled_weights(self):
        folder = save(llama(), self.folder / "original")
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        self.check_refused(folder, "safetensors")

    def test_wrong_shape(self):
        self.check_changed(llama(), ["k_proj.weight"], num_key_value_heads=3)

    def test_missing_shard(self):
        folder = save(llama(), self.folder / "original", max_shard_size="100KB")
        shard = sorted(folder.glob("model-*.safetensors"))[1]
        shard.unlink()
        self.check_refused(folder, shard.name)


if __name__ == "__main__":
    common.main()
