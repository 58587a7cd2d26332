"""Tokenizers, sampling, and texts that go on."""

import pickle

import numpy as np
import pytest

import tensorcache as tc

from conftest import SHARED


def test_generate_is_sample_and_decode(model):
    options = {"temperature": 0.9, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2, "seed": 7}
    session = model.session()
    session.prefill([72, 105])
    sampler = tc.Sampler(**options)
    expected = []
    for _ in range(30):
        expected.append(sampler.sample(session.logits, session.recent, position=session.position))
        session.decode(expected[-1])
    assert list(model.session().generate_tokens([72, 105], max_tokens=30, **options)) == expected
    text = "".join(model.session().generate("Hi", max_tokens=30, **options))
    assert text == bytes(expected).decode("utf-8", errors="replace")


def test_every_shown_token_is_in_the_session(model):
    session = model.session()
    stream = session.generate_tokens([1], max_tokens=10, seed=1)
    assert session.position == 1  # the prompt is read at once
    shown = [next(stream) for _ in range(4)]
    assert session.position == 5 and session.recent.tolist() == [1] + shown
    shown += list(session.generate_tokens(max_tokens=6, seed=1))
    assert shown == list(model.session().generate_tokens([1], max_tokens=10, seed=1))
    assert list(session.generate_tokens(max_tokens=0)) == []


def test_ends(model):
    tokens = list(model.session().generate_tokens([1], max_tokens=20, seed=2))
    end = tokens[5]
    assert list(model.session().generate_tokens([1], max_tokens=20, seed=2, end=end)) == tokens[: tokens.index(end)]
    text = "".join(model.session().generate([1], max_tokens=200, seed=2))
    stop = next(text[i : i + 2] for i in range(20, 199) if text[i : i + 2].isascii())
    pieces = list(model.session().generate([1], max_tokens=200, seed=2, stop=["no such text", stop]))
    assert "".join(pieces) == text[: text.index(stop)]


def test_a_text_goes_on_within_a_character(model):
    prompt = list("né".encode()[:2])
    tokens = list(model.session().generate_tokens(prompt, max_tokens=20, seed=1))
    stream = tc.StreamDecoder(model.tokenizer)
    pieces = [stream.push(token) for token in prompt + tokens] + [stream.finish()]
    assert pieces[:2] == ["n", ""]
    session = model.session()
    session.prefill(prompt)
    assert "".join(session.generate(max_tokens=20, seed=1)) == "".join(pieces[2:])


def test_prompts_that_cannot_be(model):
    with pytest.raises(tc.InvalidArgumentError, match="give a prompt"):
        model.session().generate()
    with pytest.raises(tc.InvalidArgumentError, match="begin"):
        model.session().generate("Hi", begin=True)
    with pytest.raises(tc.InvalidArgumentError, match="max_tokens"):
        model.session().generate("Hi", max_tokens=-1)
    with pytest.raises(tc.InvalidArgumentError, match="temperature"):
        model.session().generate("Hi", temperature=-1.0)
    with pytest.raises(tc.InvalidArgumentError):
        model.session().generate("Hi", stop=[""])
    with pytest.raises(tc.InvalidArgumentError, match="no tokenizer"):
        tc.Model.random({}).session().generate("Hi")
    with pytest.raises(TypeError):
        model.session().generate_tokens("Hi")
    with pytest.raises(tc.InvalidArgumentError, match="belongs to another model"):
        tc.Model.random({"vocab_size": 100}, tokenizer="bytes").tokenizer


def test_learned_positions_end_the_text():
    model = tc.Model.random(
        {"position_embedding": "learned", "max_position_embeddings": 12, "cache": {"method": "window", "window": 4}}
    )
    session = model.session()
    assert session.room == 12
    assert len(list(session.generate_tokens([1, 2], max_tokens=100))) == 10
    with pytest.raises(tc.UnsupportedError) as error:
        session.decode(1)
    assert isinstance(error.value, NotImplementedError)


def test_sampler_refuses(model):
    sampler = tc.Sampler()
    with pytest.raises(tc.DivergedError):
        sampler.sample(np.array([1, np.nan], np.float32), position=0)
    with pytest.raises(TypeError):
        sampler.sample(np.array([1.0, 2.0]), position=0)


def test_tokenizers(tmp_path):
    text = "Grüße aus Köln, 東京 & 🙂!"
    learned = tc.Tokenizer.train([text * 3], vocab_size=300)
    assert learned.decode(learned.encode(text)) == text
    with pytest.raises(tc.UnsupportedError, match="pickled"):
        pickle.dumps(learned)
    learned.save(tmp_path)
    loaded = tc.Tokenizer(tmp_path)
    assert loaded.fingerprint == learned.fingerprint
    assert pickle.loads(pickle.dumps(loaded)).encode(text).tolist() == learned.encode(text).tolist()
    assert loaded.end_of_text == loaded.find_special("<|endoftext|>") == loaded.vocab_size - 1
    assert loaded.is_special(loaded.end_of_text) and loaded.find_special("<|none|>") is None
    assert loaded.encode("<|endoftext|>", special_tokens=True).tolist() == [loaded.end_of_text]
    assert len(loaded.encode("<|endoftext|>")) > 1
    with pytest.raises(tc.Error):
        loaded.decode([loaded.vocab_size])
    with pytest.raises(tc.NotFoundError):
        tc.Tokenizer(tmp_path / "none")
    with pytest.raises(TypeError):  # no text, but half of a surrogate pair
        loaded.encode("\ud800")


def test_streams_of_a_sentencepiece_tokenizer():
    folder = SHARED / "models" / "tinystories-656k"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    tokenizer = tc.Tokenizer(folder)
    tokens = tokenizer.encode("Once upon a time, there was a café.")
    stream = tc.StreamDecoder(tokenizer)
    pieces = [stream.push(token) for token in tokens]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(tokens)
    assert tokenizer.decode(tokens[:2]) + tokenizer.decode(tokens[2:], previous=tokens[1]) == tokenizer.decode(tokens)
