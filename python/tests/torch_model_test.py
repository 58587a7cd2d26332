"""TensorCacheLM beside the run half, for every option it has; training; saving."""

import math
import runpy

import numpy as np
import pytest

import tensorcache as tc

torch = pytest.importorskip("torch")

from tensorcache.torch import TensorCacheAttention, TensorCacheLM  # noqa: E402

from conftest import ROOT, TINY  # noqa: E402

TOKENS = np.random.default_rng(1).integers(0, 256, 90)


def memory(**options):
    return {"cache": {"window": 8, "tensor_cache": options}}


CASES = {
    "paper": memory(),
    "associative": memory(design="associative"),
    "delta": memory(write={"rule": "delta"}, address={"normalize_keys": True}),
    "wedge": memory(write={"rule": "wedge", "value_scale": 0.5}),
    "insert": memory(write={"when": "insert", "rule": "gated_delta"}, address={"normalize_keys": True, "normalize_queries": True}),
    "chunks": memory(write={"when": "chunk_start", "chunk": 4}),
    "per token": memory(write={"decay": "per_token", "strength": "per_token", "max_half_life": 1000}, read={"gate": "per_token"}),
    "half-lives": memory(write={"first_half_life": 4, "last_half_life": 400, "decay": "per_token"}, read={"gate": "channel"}),
    "content": memory(address={"by": "content", "conv": 3, "conv_previous": 1, "shift": True}, read={"norm": "rms"}),
    "features": memory(address={"features": "softmax_pair", "shift": True}, read={"normalize": True, "floor": 0.5}),
    "timescales": memory(timescales={"slow": True}, write={"strength": "per_token"}, read={"norm": "soft"}),
    "timescales of normalised reads": memory(timescales={"slow": True}, read={"normalize": True}),
    "top layer": memory(layers="top", top_layers=1),
    "window": {"cache": {"method": "window", "window": 8}},
    "full": {"cache": {"method": "full"}},
    "llama": {"norm": "rms_norm", "hidden_act": "silu", "gated_mlp": True, "tie_word_embeddings": False, "rope_theta": 500.0,
              "rope_scaling": {"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 64}},
    "biases": {"attention_bias": True, "output_bias": True, "mlp_bias": True, "hidden_act": "gelu_tanh", "rope_pairing": "interleaved"},
    "learned positions": {"position_embedding": "learned", "max_position_embeddings": 100, "cache": {"method": "window", "window": 8}},
    "long": {"max_position_embeddings": 16, "rope_ntk_factor": 4.0},
}  # fmt: skip


def trained(config):
    """A model whose every number is away from where it starts."""
    torch.manual_seed(1)
    model = TensorCacheLM({**TINY, **config})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1 if parameter.dim() > 1 else 0.3)
    return model


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_run_half(name, tmp_path):
    model = trained(CASES[name]).eval()
    model.save(tmp_path)
    session = tc.Model(tmp_path).session()
    streamed = [session.prefill_logits(TOKENS[:50])]
    for token in TOKENS[50:]:
        session.decode(int(token))
        streamed.append(session.logits[None])
    streamed = np.concatenate(streamed)
    with torch.no_grad():
        logits = model(torch.from_numpy(TOKENS)[None])[0].numpy()
    assert streamed.std() > 0.1
    np.testing.assert_allclose(logits, streamed, rtol=0, atol=1e-4 * max(1.0, np.abs(streamed).max()))
    if "tensor_cache" in model.config["cache"]["method"]:  # the memory matters
        window = tc.Model(tmp_path, cache={"method": "window"}).session().prefill_logits(TOKENS)
        assert np.abs(window - streamed).max() > 1e-2


@pytest.mark.parametrize("name", CASES)
def test_every_trained_number_has_a_gradient(name):
    model = trained(CASES[name])
    logits = model(torch.from_numpy(TOKENS)[None])
    torch.nn.functional.cross_entropy(logits[0, :-1], torch.from_numpy(TOKENS)[1:]).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name


def test_chunk_modes_differ_in_training_alone():
    model = trained(CASES["chunks"])
    tokens = torch.from_numpy(TOKENS)[None]
    assert not torch.allclose(model.train()(tokens), model.eval()(tokens))


def test_initial_numbers_are_those_of_the_config():
    model = TensorCacheLM({**TINY, **memory(write={"lambda_init": 0.9, "eta_init": 0.2, "learn_eta": False}, read={"gate_init": 0.7, "zero_output": True})})
    numbers = model.model.layers[1].self_attn.tensor_cache
    assert torch.allclose(numbers.lambda_logit.sigmoid(), torch.tensor(0.9))
    assert torch.allclose(numbers.eta_logit.sigmoid(), torch.tensor(0.2)) and not numbers.eta_logit.requires_grad
    assert numbers.gate.item() == pytest.approx(0.7) and not numbers.o_proj.weight.any()
    matrices = TensorCacheLM({"hidden_size": 256, "num_hidden_layers": 2}).model.layers[0]
    assert matrices.self_attn.q_proj.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert matrices.mlp.down_proj.weight.std().item() == pytest.approx(0.02 / math.sqrt(4), rel=0.05)
    assert matrices.self_attn.tensor_cache.o_proj.weight.std().item() == pytest.approx(0.02 / math.sqrt(4), rel=0.05)


def test_checkpoints_come_back(tmp_path):
    model = trained(CASES["associative"])
    model.save(tmp_path / "new")
    again = TensorCacheLM.from_checkpoint(tmp_path / "new")
    assert again.config == model.config == tc.Model(tmp_path / "new").config
    assert all(torch.equal(x, model.state_dict()[name]) for name, x in again.state_dict().items())
    safetensors = pytest.importorskip("safetensors.torch")
    assert safetensors.load_file(tmp_path / "new" / "model.safetensors").keys() == model.state_dict().keys()
    with pytest.raises(tc.InvalidArgumentError, match="force"):
        model.save(tmp_path / "new")
    trained(CASES["paper"]).save(tmp_path / "new", force=True)
    assert tc.Model(tmp_path / "new").config["cache"]["tensor_cache"]["design"] == "paper"
    (tmp_path / "file").write_text("")
    with pytest.raises(tc.Error):
        model.save(tmp_path / "file" / "model")


def test_a_real_model_can_be_trained_on(stories):
    model = TensorCacheLM.from_checkpoint(stories)
    tokens = tc.Model(stories).tokenizer.encode("Once upon a time, there was a little girl named Lily.")
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens).long()[None])[0].numpy()
    np.testing.assert_allclose(logits, tc.Model(stories).session().prefill_logits(tokens), atol=1e-3)


def test_what_is_refused(tmp_path):
    for config, kind, message in (
        ({"cache": {"method": "infini"}}, tc.UnsupportedError, "not infini"),
        (memory(router={"slots": 4}), tc.UnsupportedError, "one slot"),
        ({"hidden_sice": 4}, tc.InvalidArgumentError, "hidden_sice"),
        ({"num_attention_heads": 3, "hidden_size": 32}, tc.InvalidArgumentError, "heads"),
    ):
        with pytest.raises(kind, match=message):
            TensorCacheLM(config)
    with pytest.raises(tc.InvalidArgumentError, match="layer is 9, of 4"):
        TensorCacheAttention({}, layer=9)
    with pytest.raises(FileNotFoundError):
        TensorCacheLM.from_checkpoint(tmp_path)


def test_the_example_trains_and_streams(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["recall.py", "3", str(tmp_path)])
    threads = torch.get_num_threads()
    runpy.run_path(str(ROOT / "python/examples/recall.py"), run_name="__main__")
    torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert "step 3: loss" in printed and "of 120 answers" in printed
    assert tc.Model(tmp_path).config["cache"]["window"] == 12


def test_a_layer_is_compiled_as_a_whole():
    torch.manual_seed(1)
    layer = TensorCacheAttention({**TINY, **CASES["associative"]})
    x = torch.randn(2, 30, 32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    assert torch.allclose(compiled, layer(x), atol=1e-5)
    compiled.sum().backward()
    assert all(parameter.grad is not None for name, parameter in layer.named_parameters())
