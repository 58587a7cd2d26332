"""What the tests share: small models of random weights, and real ones where they are on the machine."""

import pathlib

import pytest

import tensorcache as tc

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"

TINY = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "cache": {"window": 8},
}


@pytest.fixture(scope="session")
def model() -> tc.Model:
    return tc.Model.random(TINY, seed=3, threads=2, tokenizer="bytes")


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A real model of 0.66 M parameters, imported."""
    source = SHARED / "models" / "tinystories-656k"
    if not source.is_dir():
        pytest.skip(f"no {source}")
    out = tmp_path_factory.mktemp("stories") / "model"
    tc.import_model(source, out)
    return out
