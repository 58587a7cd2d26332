"""Readers of llama2.c's files, written from its format and apart from ours: a transformers model, and its tokenizer."""

import struct

import numpy
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def read_model(path):
    """The model of a .bin file (version 0: seven sizes, then the tensors of all layers, kind by kind, in fp32)."""
    data = path.read_bytes()
    dim, hidden, layers, heads, key_heads, vocab, length = struct.unpack("<7i", data[:28])
    own_output, vocab = vocab < 0, abs(vocab)
    numbers, at = torch.from_numpy(numpy.frombuffer(data, dtype="<f4", offset=28).copy()), 0
    head = dim // heads

    def take(*shape):
        nonlocal at
        count = int(numpy.prod(shape))
        at += count
        return numbers[at - count : at].reshape(shape)

    def half_split(weight, count):
        """Columns 2i, 2i + 1 of a head turn together in the file, and i, i + head / 2 in transformers."""
        return weight.reshape(count, head // 2, 2, dim).transpose(1, 2).reshape(count * head, dim)

    embedding = take(vocab, dim)
    kinds = {
        "input_layernorm": take(layers, dim),
        "self_attn.q_proj": torch.stack([half_split(w, heads) for w in take(layers, dim, dim)]),
        "self_attn.k_proj": torch.stack([half_split(w, key_heads) for w in take(layers, key_heads * head, dim)]),
        "self_attn.v_proj": take(layers, key_heads * head, dim),
        "self_attn.o_proj": take(layers, dim, dim),
        "post_attention_layernorm": take(layers, dim),
        "mlp.gate_proj": take(layers, hidden, dim),
        "mlp.down_proj": take(layers, dim, hidden),
        "mlp.up_proj": take(layers, hidden, dim),
    }
    state = {f"model.layers.{i}.{kind}.weight": w[i] for kind, w in kinds.items() for i in range(layers)}
    state["model.embed_tokens.weight"] = embedding
    state["model.norm.weight"] = take(dim)
    take(2, length, head // 2)  # tables of cosines and sines, of no use here
    state["lm_head.weight"] = take(vocab, dim) if own_output else embedding
    assert at == len(numbers)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=dim, intermediate_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=key_heads, max_position_embeddings=length, rms_norm_eps=1e-5,
        tie_word_embeddings=not own_output,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model


class Tokenizer:
    """llama2.c's encode and decode."""

    BOS, EOS, FIRST_BYTE = 1, 2, 3

    def __init__(self, path):
        data, at = path.read_bytes(), 4  # after the longest token's length
        self.pieces, self.scores = [], []
        while at < len(data):
            score, length = struct.unpack_from("<fi", data, at)
            self.pieces.append(data[at + 8 : at + 8 + length])
            self.scores.append(score)
            at += 8 + length
        self.tokens = {piece: token for token, piece in reversed(list(enumerate(self.pieces)))}

    def encode(self, text):
        """Without BOS. A space goes before the text; characters that are no token become bytes; then, as long as any
        two neighbours make a token, those whose token has the best score, the first of equals."""
        tokens = [self.tokens[b" "]] if text else []
        for character in text:
            piece = character.encode()
            tokens += [self.tokens[piece]] if piece in self.tokens else [byte + self.FIRST_BYTE for byte in piece]
        while True:
            best = None
            for i in range(len(tokens) - 1):
                token = self.tokens.get(self.pieces[tokens[i]] + self.pieces[tokens[i + 1]])
                if token is not None and (best is None or self.scores[token] > self.scores[best[1]]):
                    best = i, token
            if best is None:
                return tokens
            tokens[best[0] : best[0] + 2] = [best[1]]

    def decode(self, tokens):
        """The bytes; the space that begins a text is dropped."""
        text = b"".join(
            bytes([token - self.FIRST_BYTE]) if self.FIRST_BYTE <= token < self.FIRST_BYTE + 256 else self.pieces[token]
            for token in tokens
        )
        return text.removeprefix(b" ")
