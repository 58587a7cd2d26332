"""Imported models streamed with a bounded cache, against transformers with the attention that this amounts to."""

import common
import llama2c
import models
import torch
import transformers
from families import LLAMA3_ROPE, llama, mistral, qwen2, save

WINDOW, SINKS = 40, 3


def rotated(x, angles):
    """x (..., tokens, dims) turned by angles (tokens, dims / 2); columns i and i + dims / 2 are a pair."""
    cos, sin = angles.cos().repeat(1, 2).float(), angles.sin().repeat(1, 2).float()
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def bounded_attention(module, query, key, value, mask, scaling, **unused):
    """The last WINDOW keys, and the first module.sinks, as if these stood right before the window: at token t they
    have moved by as many places as keys were dropped between. Queries and keys come with their rotation by position;
    turning the query back by that many places is the same as moving the key."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    position = torch.arange(query.shape[2])
    dropped = (position - (module.sinks + WINDOW - 1)).clamp(min=0)
    moved = rotated(query, -dropped[:, None].double() * module.frequencies)
    age = position[:, None] - position[None, :]
    in_window, is_sink = (age >= 0) & (age < WINDOW), (age >= WINDOW) & (position[None, :] < module.sinks)
    scores = torch.where(is_sink, moved @ key.transpose(2, 3), query @ key.transpose(2, 3)) * scaling
    scores = scores.masked_fill(~(in_window | is_sink), -torch.inf)
    return (scores.softmax(dim=-1) @ value).transpose(1, 2), None


transformers.AttentionInterface.register("bounded", bounded_attention)


def bounded(model, sinks):
    for layer in model.model.layers:
        layer.self_attn.sinks = sinks
        layer.self_attn.frequencies = model.model.rotary_emb.inv_freq.double()
    model.set_attn_implementation("bounded")
    return model


class Streaming(models.ModelTest):
    def check(self, folder, theirs, tokens):
        for method, sinks in (("window", 0), ("streaming_llm", SINKS)):
            expected = models.logits_of(bounded(theirs, sinks), tokens)
            for split in ("prefill", "steps", "halves"):
                with self.subTest(method, split=split):
                    ours = self.probe_logits(
                        folder, tokens, split=split, method=method, window=str(WINDOW), sinks=str(SINKS)
                    )
                    self.check_logits(ours, expected)

    def check_family(self, model):
        folder = save(model, self.folder / "original")
        self.check(self.imported(folder), models.load(folder), models.random_tokens(131, 300, seed=7))

    def test_llama(self):
        self.check_family(llama())

    def test_llama3_rope(self):
        self.check_family(llama(rope_parameters=dict(LLAMA3_ROPE)))

    def test_qwen2(self):
        self.check_family(qwen2())

    def test_another_window_than_the_models_own(self):
        self.check_family(mistral(sliding_window=96))

    def test_window_is_that_of_mistral(self):
        """The library's own sliding window says the same as the attention above."""
        folder = save(mistral(sliding_window=WINDOW), self.folder / "original")
        tokens = models.random_tokens(131, 200, seed=7)
        own = models.logits_of(models.load(folder), tokens)
        self.check_logits(models.logits_of(bounded(models.load(folder), 0), tokens), own)

    @common.needs_data("models", "stories260K")
    def test_stories260k(self):
        """Text of three times the trained length."""
        original = common.DATA / "models" / "stories260K"
        tokenizer = llama2c.Tokenizer(original / "tok512.bin")
        story = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
        tokens = [tokenizer.BOS, *tokenizer.encode(story) * 60][:1500]
        ours = self.imported(original / "stories260K.bin", "--tokenizer", original / "tok512.bin")
        self.check(ours, models.ready(llama2c.read_model(original / "stories260K.bin")), tokens)


if __name__ == "__main__":
    common.main()
