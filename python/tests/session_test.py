"""Model, Session and what goes through them."""

import copy
import pickle
import sys
import threading

import numpy as np
import pytest

import tensorcache as tc

from conftest import TINY

TEXT = np.random.default_rng(1).integers(0, 256, 100, dtype=np.int32)


def logits_after(model, tokens):
    session = model.session()
    session.prefill(tokens)
    return session.logits


@pytest.mark.parametrize("method", ["full", "window", "streaming_llm", "infini", "tensor_cache"])
def test_any_split_gives_the_same_logits(method):
    model = tc.Model.random({**TINY, "cache": {"method": method, "window": 8}}, seed=3)
    whole = logits_after(model, TEXT)
    session = model.session()
    session.prefill(TEXT[:41])
    for token in TEXT[41:60]:
        session.decode(token)
    session.prefill(TEXT[60:])
    np.testing.assert_allclose(session.logits, whole, atol=1e-4)
    assert session.position == 100
    assert session.recent.tolist() == TEXT.tolist()
    grows = session.state_bytes.total > model.session().state_bytes.total
    assert grows == (method == "full")


@pytest.mark.parametrize(
    "tokens",
    [TEXT.tolist(), tuple(TEXT), TEXT.astype(np.int64), TEXT.astype(np.uint16), np.repeat(TEXT, 2)[::2], memoryview(TEXT)],
)
def test_tokens_come_in_any_form(model, tokens):
    assert np.array_equal(logits_after(model, tokens), logits_after(model, TEXT))


@pytest.mark.parametrize("tokens", [[1, 256], [-1], [2**40], [-(2**80)], np.array([300])])
def test_a_token_outside_the_vocabulary_changes_nothing(model, tokens):
    session = model.session()
    with pytest.raises(tc.InvalidArgumentError, match="vocabulary"):
        session.prefill(tokens)
    with pytest.raises(tc.InvalidArgumentError, match="vocabulary"):
        session.score([7] * 3000 + list(tokens))  # more than one piece
    assert session.position == 0


@pytest.mark.parametrize("tokens", ["text", b"bytes", [1.5], np.zeros(3), [None], 7, np.zeros((2, 2), np.int32)])
def test_what_are_no_tokens_is_a_type_error(model, tokens):
    with pytest.raises(TypeError):
        model.session().prefill(tokens)


def test_logits_are_one_array_until_the_session_goes_on(model):
    session = model.session()
    with pytest.raises(tc.InvalidArgumentError, match="no logits"):
        session.logits
    session.prefill([1, 2, 3])
    first = session.logits
    assert first is session.logits
    assert first.dtype == np.float32 and first.shape == (256,) and not first.flags.writeable
    kept = first.copy()
    session.decode(4)
    assert session.logits is not first
    assert np.array_equal(first, kept)
    del session
    assert np.array_equal(first, kept)


def test_score_is_the_log_softmax_of_the_logits(model):
    nll = model.session().score(TEXT)
    logits = model.session().prefill_logits(TEXT).astype(np.float64)
    assert logits.shape == (100, 256) and np.isnan(nll[0])
    log_sum = np.log(np.exp(logits[:-1] - logits.max()).sum(1)) + logits.max()
    np.testing.assert_allclose(nll[1:], log_sum - logits[np.arange(99), TEXT[1:]], atol=1e-5)


def test_score_goes_on_across_calls_and_pieces(model):
    long = np.resize(TEXT, 5000)  # three pieces
    whole = model.session().score(long)
    session = model.session()
    parts = np.concatenate([session.score(long[:1]), session.score(long[1:2500]), session.score(long[2500:])])
    np.testing.assert_allclose(parts[1:], whole[1:], atol=1e-4)


def test_a_batch_is_bit_for_bit_what_its_sessions_are_alone(model):
    starts = [TEXT[:10], TEXT[:30], TEXT[:0], TEXT[20:25]]
    batch, alone = [], []
    for start in starts:
        for sessions in (batch, alone):
            sessions.append(model.session())
            sessions[-1].prefill(start)
    tc.decode_batch(batch, [1, 2, 3, 4])
    for session, token in zip(alone, [1, 2, 3, 4]):
        session.decode(token)
    for row, one, other in zip(tc.batch_logits(batch), batch, alone):
        assert np.array_equal(one.logits, other.logits)
        assert np.array_equal(row, other.logits)


def test_batches_that_cannot_be(model):
    session, other = model.session(), tc.Model.random(TINY, seed=4).session()
    with pytest.raises(tc.InvalidArgumentError, match="twice"):
        tc.decode_batch([session, session], [1, 2])
    with pytest.raises(tc.InvalidArgumentError, match="one model"):
        tc.decode_batch([session, other], [1, 2])
    with pytest.raises(tc.InvalidArgumentError, match="2 sessions and 1 tokens"):
        tc.decode_batch([session, other], [1])
    with pytest.raises(RuntimeError):
        tc.decode_batch([session, None], [1, 2])
    tc.decode_batch([], [])
    assert session.position == 0


def test_forks_go_their_own_ways(model):
    session = model.session()
    session.prefill(TEXT[:50])
    for fork in (session.fork(), copy.copy(session), copy.deepcopy(session)):
        fork.prefill(TEXT[50:])
        assert session.position == 50
        assert fork.model is model
        session_goes_on = session.fork()
        session_goes_on.prefill(TEXT[50:])
        assert np.array_equal(fork.logits, session_goes_on.logits)


def test_states_in_bytes_and_files(model, tmp_path):
    session = model.session()
    session.prefill(TEXT)
    state = session.to_bytes()
    session.save(tmp_path / "state")
    assert (tmp_path / "state").read_bytes() == state
    restored = [
        model.session_from_bytes(state),
        model.session_from_file(tmp_path / "state"),
        pickle.loads(pickle.dumps(session)),
    ]
    session.decode(5)
    for other in restored:
        other.decode(5)
        assert np.array_equal(other.logits, session.logits)
    assert len(session.to_bytes()) == len(state)


def test_states_that_are_refused(model, tmp_path):
    state = model.session().to_bytes()
    damaged = bytearray(state)
    damaged[len(state) // 2] ^= 1
    with pytest.raises(tc.CorruptError, match="checksum"):
        model.session_from_bytes(bytes(damaged))
    with pytest.raises(tc.CorruptError):
        model.session_from_bytes(state[:-1])
    with pytest.raises(tc.Error):
        tc.Model.random(TINY, seed=4).session_from_bytes(state)
    with pytest.raises(tc.NotFoundError) as error:
        model.session_from_file(tmp_path / "none")
    assert isinstance(error.value, FileNotFoundError) and "none" in str(error.value)


def test_pickle_takes_all_of_a_model(stories):
    model = tc.Model(stories, weights="bf16", ring="bf16", threads=1, cache={"method": "streaming_llm", "window": 32})
    session = model.session(rope_ntk_factor=2.0)
    session.prefill(range(1, 100))
    again, other = pickle.loads(pickle.dumps((session, model)))
    assert again.model is other
    assert other.config == model.config and other.threads == 1 and other.fingerprint == model.fingerprint
    assert np.array_equal(again.logits, session.logits)
    assert other.tokenizer.encode("Once").tolist() == model.tokenizer.encode("Once").tolist()


STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside with her ball. One day, her ball "
    "rolled into the garden, and she could not find it. Her dog Spot ran to help. He looked under the big tree and "
    "behind the red flowers. Spot barked and wagged his tail. Lily was very happy, and she gave Spot a big hug."
)


def test_other_weights_and_caches(stories):
    def nll(**options):
        model = tc.Model(stories, **options)
        tokens = model.tokenizer.encode(STORY)
        return model.session().score(np.insert(tokens, 0, model.tokenizer.begin_of_text))[1:].mean()

    exact = nll()
    assert exact < 4  # of 2048 tokens
    # The bounds of docs/running.md.
    assert abs(nll(weights="bf16") - exact) < 0.01
    assert abs(nll(weights="int8") - exact) < 0.02
    assert abs(nll(ring="bf16") - exact) < 0.005
    assert nll(cache={"method": "window", "window": 256}) == exact
    assert nll(cache={"method": "window", "window": 4}) > exact + 1
    assert tc.Model(stories, cache={"window": 4}).config["cache"]["window"] == 4


def test_a_real_model_writes_english(stories):
    session = tc.Model(stories).session()
    text = "".join(session.generate("Once upon a time", begin=True, max_tokens=40, temperature=0.0))
    assert "little girl named Lily" in text


def test_what_cannot_be_loaded(stories, tmp_path):
    with pytest.raises(tc.NotFoundError, match="there is no model"):
        tc.Model(tmp_path / "none")
    with pytest.raises(tc.InvalidArgumentError, match="weights is 'fp64'; it can be one of 'fp32', 'bf16', 'int8'"):
        tc.Model(stories, weights="fp64")
    with pytest.raises(tc.InvalidArgumentError, match="windw"):
        tc.Model(stories, cache={"windw": 4})
    with pytest.raises(tc.InvalidArgumentError, match="lacks learned weights that method tensor_cache needs"):
        tc.Model(stories, cache={"method": "tensor_cache", "window": 4})
    with pytest.raises(tc.InvalidArgumentError):
        tc.Model.random({"hidden_size": -1})
    (stories.parent / "broken").mkdir()
    (stories.parent / "broken" / "config.json").write_text("{")
    with pytest.raises(tc.CorruptError):
        tc.Model(stories.parent / "broken")


def test_diverged_sessions_say_so_until_cleared():
    # Keys much longer than the delta rule can take.
    memory = {"write": {"rule": "delta", "eta_init": 0.9}, "address": {"by": "content"}}
    config = {"hidden_size": 512, "num_hidden_layers": 1, "cache": {"window": 4, "tensor_cache": memory}}
    session = tc.Model.random(config, seed=1).session()
    with pytest.raises(tc.DivergedError, match="normalise the keys") as error:
        session.prefill(np.full(2000, 9, np.int32))
    assert isinstance(error.value, ArithmeticError)
    for call in (lambda: session.decode(1), lambda: list(session.generate_tokens(max_tokens=1)), session.to_bytes):
        with pytest.raises(tc.DivergedError, match="clear the session"):
            call()
    session.clear()
    session.decode(1)
    assert session.position == 1 and np.isfinite(session.logits).all()


def test_memory_can_be_looked_at(model):
    session = model.session()
    assert not session.memory(0, 0).any()
    session.prefill(TEXT)
    matrix = session.memory(1, 1)
    assert matrix.shape == (8, 8) and matrix.any()
    with pytest.raises(tc.InvalidArgumentError, match="no such memory"):
        session.memory(2, 0)
    with pytest.raises(tc.InvalidArgumentError, match="no such memory"):
        session.memory(0, 0, slot=1)


def test_threads_take_turns_and_run_side_by_side(model):
    expected = logits_after(model, np.resize(TEXT, 2000))
    shared = model.session()
    results = [None] * 4

    def read(number):
        session = model.session()
        for piece in np.split(np.resize(TEXT, 2000), 20):
            session.prefill(piece)
            shared.prefill(piece[:10])
            tc.decode_batch([session.fork(), shared], [1, 2])
        results[number] = session.logits

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for logits in results:
        np.testing.assert_allclose(logits, expected, atol=1e-4)
    assert shared.position == 4 * 20 * 11


def test_the_lock_of_the_interpreter_is_released():
    model = tc.Model.random({**TINY, "hidden_size": 256, "intermediate_size": 1024}, threads=1)
    done = threading.Event()
    seen = []

    def read():
        model.session().score(np.resize(TEXT, 2000))  # one piece
        seen.append(sum_before_the_end[0])
        done.set()

    sum_before_the_end = [0]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody gets the lock unless it is given away
    try:
        thread = threading.Thread(target=read)
        thread.start()
        while not done.is_set():
            sum_before_the_end[0] += 1
            done.wait(1e-4)
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert seen[0] > 0


def test_evaluate_is_the_mean_of_scores(model):
    (score,) = tc.evaluate(model, TEXT, contexts=[20], starts=3, seed=5)
    assert score["state_bytes"] == model.session().state_bytes.total
    for start, nll in zip(score["starts"], score["nll"], strict=True):
        alone = model.session().score(TEXT[start : start + 21])[1:]
        assert abs(alone.astype(np.float64).mean() - nll) < 1e-6
    with pytest.raises(tc.InvalidArgumentError):
        tc.evaluate(model, TEXT, contexts=[100])


def test_info_is_what_the_program_writes(stories):
    facts = tc.info(stories)
    assert facts["parameters"] == tc.Model(stories).parameters
    assert facts["config"] == tc.Model(stories).config
    assert {row["method"] for row in facts["states"]} >= {"full", "window", "tensor_cache"}


def test_import_and_export_keep_the_model(stories, tmp_path):
    with pytest.raises(tc.InvalidArgumentError, match="name another one"):
        tc.export_model(stories, stories)
    report = tc.export_model(stories, tmp_path / "hf")
    assert report["architecture"] == "LlamaForCausalLM"
    back = tc.import_model(tmp_path / "hf", tmp_path / "back")
    assert back["parameters"] == tc.Model(stories).parameters
    tokens = list(range(1, 60))
    assert np.array_equal(
        tc.Model(stories).session().prefill_logits(tokens), tc.Model(tmp_path / "back").session().prefill_logits(tokens)
    )
