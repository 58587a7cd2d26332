"""tensorcache.torch: kernels, tensor operations and plain loops against each other, and what torch expects of an op."""

import copy
import multiprocessing
import threading

import pytest

import tensorcache as tc

torch = pytest.importorskip("torch")

from tensorcache.torch import memory_scan, window_attention  # noqa: E402
from tensorcache.torch._memory_scan_composite import memory_scan_composite  # noqa: E402
from tensorcache.torch._window_attention_composite import window_attention_composite  # noqa: E402

EPS = torch.finfo(torch.float32).eps


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


def near(actual, expected, roundings=200):
    """Within so many roundings of the largest number. Sums here have up to some thousand terms of mixed signs, of which float32 gets
    the square root wrong, and the terms are a few times as large as the sum."""
    scale = max(expected.abs().max().item(), 1.0) if expected.numel() else 1.0
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=roundings * EPS * scale)


# The memory -----------------------------------------------------------------------------------------------------------


def scan_inputs(*, B=2, T=40, H=4, G=2, Dk=6, Dv=6, past=0, per_token=False, initial=True, dtype=torch.float64, **options):
    def normal(*sizes):
        return torch.randn(*sizes, dtype=dtype)

    def decay(*sizes):
        return -0.2 * torch.rand(*sizes, dtype=dtype)

    def strength(*sizes):
        return 0.1 + 0.5 * torch.rand(*sizes, dtype=dtype)

    inputs = {
        "q": normal(B, T, H, Dk),
        "k": torch.nn.functional.normalize(normal(B, T, G, Dk), dim=-1),
        "v": normal(B, T, G, Dv),
        "log_decay": decay(B, T, G) if per_token else decay(G),
        "write_strength": strength(B, T, G) if per_token else strength(G),
    }
    if past:
        inputs["past_k"] = torch.nn.functional.normalize(normal(B, G, past, Dk), dim=-1)
        inputs["past_v"] = normal(B, G, past, Dv)
        if per_token:
            inputs["past_log_decay"] = decay(B, G, past)
            inputs["past_write_strength"] = strength(B, G, past)
    if initial:
        inputs["initial"] = normal(B, G, Dk, Dv)
    return inputs, options


SCANS = [
    {"rule": rule, **case}
    for rule in ("outer", "delta", "gated_delta", "wedge")
    for case in (
        {"lag": 0},
        {"lag": 12, "past": 5, "per_token": True},
        {"lag": 12, "past": 12, "initial": False},
        {"lag": 7, "T": 150, "H": 2, "per_token": True},
        {"lag": 60, "past": 3},  # nothing is written
        {"T": 1, "lag": 4, "past": 4},
    )
] + [
    {"rule": "outer", "Dk": 5, "Dv": 9, "lag": 3},
    {"rule": "outer", "mode": "chunk_start", "chunk": 16},
    {"rule": "delta", "mode": "chunk_start", "chunk": 7, "per_token": True},
    {"rule": "outer", "mode": "chunk_mean", "chunk": 16},
    {"rule": "wedge", "mode": "chunk_mean", "chunk": 9, "per_token": True},
    {"rule": "outer", "T": 0, "lag": 4, "past": 2},
]


def scan_loop(inputs, *, lag=0, rule="outer"):
    """The recurrence, token by token."""
    q, k, v = inputs["q"], inputs["k"].transpose(1, 2), inputs["v"].transpose(1, 2)
    B, T, H, Dk = q.shape
    G, Dv = k.shape[1], v.shape[3]

    def with_past(name, block):
        return torch.cat((inputs[name], block), 2) if name in inputs else block

    past = inputs["past_k"].shape[2] if "past_k" in inputs else 0
    k, v = with_past("past_k", k), with_past("past_v", v)
    g, b = (
        with_past(f"past_{name}", inputs[name].transpose(1, 2))
        if inputs[name].dim() == 3
        else inputs[name].view(1, G, 1).expand(B, G, past + T)
        for name in ("log_decay", "write_strength")
    )
    A = inputs.get("initial", q.new_zeros(B, G, Dk, Dv))
    reads, written = [], 0
    for t in range(T):
        while written <= past + t - lag:
            key, value = k[:, :, written, :, None], v[:, :, written, None, :]
            decay, strength = g[:, :, written, None, None].exp(), b[:, :, written, None, None]
            known = {"delta": A, "gated_delta": decay * A}.get(rule)
            change = key @ (value if known is None else value - key.transpose(2, 3) @ known)
            A = decay * A + strength * (change - change.transpose(2, 3) if rule == "wedge" else change)
            written += 1
        grouped = q[:, t].view(B, G, H // G, Dk)
        reads.append((grouped @ A).reshape(B, H, Dv))
    return (torch.stack(reads, 1) if reads else q.new_empty(B, 0, H, Dv)), A


def gradients_of(inputs, outputs, weights):
    loss = sum((out * weight).sum() for out, weight in zip(outputs, weights))
    if not loss.requires_grad:  # no tokens
        return [torch.zeros_like(x) for x in inputs.values()]
    found = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs.values(), found)]


def leaves(inputs, dtype):
    return {name: x.detach().to(dtype).requires_grad_() for name, x in inputs.items()}


@pytest.mark.parametrize("case", SCANS, ids=str)
def test_scan_is_the_recurrence_with_all_gradients(case):
    inputs, options = scan_inputs(**case)
    exact = leaves(inputs, torch.float64)
    composite = memory_scan(**exact, **options)  # float64: tensor operations
    weights = [torch.randn_like(out) for out in composite]
    expected = gradients_of(exact, composite, weights)
    if options.get("mode", "exact") == "exact":
        looped = leaves(inputs, torch.float64)
        loop = scan_loop(looped, **{name: options[name] for name in ("lag", "rule") if name in options})
        for out, other in zip(composite, loop):
            torch.testing.assert_close(out, other)
        for gradient, other in zip(expected, gradients_of(looped, loop, weights)):
            torch.testing.assert_close(gradient, other)
    single = leaves(inputs, torch.float32)
    fused = memory_scan(**single, **options)
    for out, other in zip(fused, composite):
        assert out.is_contiguous() and out.dtype == torch.float32
        near(out, other)
    for name, gradient, other in zip(single, gradients_of(single, fused, [w.float() for w in weights]), expected):
        assert gradient.shape == single[name].shape
        near(gradient, other)


@pytest.mark.parametrize("which", [0, 1])
def test_scan_gradients_of_one_output(which):
    inputs, options = scan_inputs(lag=5, past=2, per_token=True, rule="delta")
    results = []
    for dtype in (torch.float32, torch.float64):
        own = leaves(inputs, dtype)
        results.append(gradients_of(own, [memory_scan(**own, **options)[which]], [torch.ones((), dtype=dtype)]))
    for actual, expected in zip(*results):
        near(actual, expected)


@pytest.mark.parametrize("case", [SCANS[1], SCANS[7], SCANS[13], SCANS[19], SCANS[-3]], ids=str)
def test_scan_gradients_are_finite_differences(case):
    inputs, options = scan_inputs(**{**case, "B": 1, "T": 9, "H": 2, "G": 1, "Dk": 3, "Dv": 3, "past": min(case.get("past", 0), 3)})
    names = list(inputs)
    assert torch.autograd.gradcheck(
        lambda *tensors: tuple(memory_scan(**dict(zip(names, tensors)), **options)),
        [x.requires_grad_() for x in inputs.values()],
    )


def test_scan_cut_into_blocks_gives_the_same():
    inputs, options = scan_inputs(T=50, lag=8, per_token=True, rule="delta", dtype=torch.float32)
    whole = memory_scan(**inputs, **options)
    ring = {name: inputs[name][:, :0].transpose(1, 2) for name in ("k", "v", "log_decay", "write_strength")}
    state, reads = inputs["initial"], []
    for begin, end in ((0, 3), (3, 4), (4, 30), (30, 50)):
        block = {name: inputs[name][:, begin:end] for name in ("q", *ring)}
        part = memory_scan(**block, **{f"past_{name}": x for name, x in ring.items()}, initial=state, **options)
        reads.append(part.reads)
        state = part.final_state
        ring = {name: torch.cat((x, block[name].transpose(1, 2)), 2)[:, :, -8:] for name, x in ring.items()}
    near(torch.cat(reads, 1), whole.reads)
    near(state, whole.final_state)


# The window -----------------------------------------------------------------------------------------------------------

WINDOWS = [
    {"T": 1, "D": 3, "Dv": 5, "H": 1, "G": 1, "window": 1},
    {"T": 7, "D": 5, "Dv": 3, "window": 12},
    {"T": 40, "window": 12, "past": 5, "position": 5},
    {"T": 20, "window": 4, "past": 11, "position": 30},
    {"T": 33, "past": 6, "position": 8},  # unbounded
    {"T": 150, "window": 30, "past": 29, "position": 1000, "scale": 0.1},
    {"T": 21, "window": 5, "past": 4, "sinks": 3, "position": 50},
    {"T": 90, "window": 7, "sinks": 4, "q_sink": True},  # sinks come in
    {"T": 6, "window": 8, "sinks": 2, "q_sink": True},  # none is seen
    {"T": 0, "window": 8, "past": 3, "position": 3},
]


def window_inputs(*, B=2, T=10, H=4, G=2, D=8, Dv=8, past=0, sinks=0, q_sink=False, dtype=torch.float64, **options):
    sizes = {"q": (B, T, H, D), "k": (B, T, G, D), "v": (B, T, G, Dv)}
    if past:
        sizes |= {"past_k": (B, G, past, D), "past_v": (B, G, past, Dv)}
    if sinks:
        sizes |= {"sink_k": (B, G, sinks, D), "sink_v": (B, G, sinks, Dv)}
    if q_sink:
        sizes["q_sink"] = (B, T, H, D)
    return {name: torch.randn(*size, dtype=dtype) for name, size in sizes.items()}, options


def window_loop(inputs, *, window=0, position=0, scale=None):
    """The formula, query by query."""
    q, k, v = inputs["q"], inputs["k"].transpose(1, 2), inputs["v"].transpose(1, 2)
    B, T, H, D = q.shape
    G = k.shape[1]
    past = inputs["past_k"].shape[2] if "past_k" in inputs else 0
    k = torch.cat((inputs["past_k"], k), 2) if past else k
    v = torch.cat((inputs["past_v"], v), 2) if past else v
    outputs = []
    for t in range(T):
        first = max(0, past + t + 1 - window) if window else 0
        keys, values = k[:, :, first : past + t + 1], v[:, :, first : past + t + 1]
        query = q[:, t].view(B, G, H // G, D)
        logits = query @ keys.transpose(2, 3)
        if window and "sink_k" in inputs:
            seen = max(0, min(position + t - window + 1, inputs["sink_k"].shape[2]))
            sink_query = inputs.get("q_sink", q)[:, t].view(B, G, H // G, D)
            logits = torch.cat((logits, sink_query @ inputs["sink_k"][:, :, :seen].transpose(2, 3)), 3)
            values = torch.cat((values, inputs["sink_v"][:, :, :seen]), 2)
        weights = (logits * (D**-0.5 if scale is None else scale)).softmax(3)
        outputs.append((weights @ values).reshape(B, H, -1))
    return torch.stack(outputs, 1) if outputs else q.new_empty(B, 0, H, v.shape[3])


@pytest.mark.parametrize("case", WINDOWS, ids=str)
def test_window_is_the_formula_with_all_gradients(case):
    inputs, options = window_inputs(**case)
    exact, looped, single = leaves(inputs, torch.float64), leaves(inputs, torch.float64), leaves(inputs, torch.float32)
    composite = window_attention(**exact, **options)
    loop = window_loop(looped, **options)
    fused = window_attention(**single, **options)
    torch.testing.assert_close(composite, loop)
    assert fused.is_contiguous() and fused.dtype == torch.float32
    near(fused, composite)
    weight = torch.randn_like(composite)
    expected = gradients_of(exact, [composite], [weight])
    for gradient, other in zip(expected, gradients_of(looped, [loop], [weight])):
        torch.testing.assert_close(gradient, other)
    for gradient, other in zip(gradients_of(single, [fused], [weight.float()]), expected):
        near(gradient, other)


def test_window_gradients_are_finite_differences():
    inputs, options = window_inputs(B=1, T=9, H=2, G=1, D=3, Dv=2, window=3, past=2, position=2, sinks=2, q_sink=True)
    names = list(inputs)
    assert torch.autograd.gradcheck(
        lambda *tensors: window_attention(**dict(zip(names, tensors)), **options),
        [x.requires_grad_() for x in inputs.values()],
    )


# Both, as ops of torch ------------------------------------------------------------------------------------------------


def both(scan, window):
    """A function of both, and tensors for it."""
    own, options = scan_inputs(dtype=torch.float32, T=20, **scan)
    other, window_options = window_inputs(dtype=torch.float32, T=20, D=6, Dv=6, **window)
    other = {f"window_{name}": x for name, x in other.items() if name not in ("q", "k", "v")}

    def call(tensors):
        past = {name.removeprefix("window_"): x for name, x in tensors.items() if name.startswith("window_")}
        scan_tensors = {name: x for name, x in tensors.items() if not name.startswith("window_")}
        q, k, v = (tensors[name] for name in "qkv")
        result = memory_scan(**scan_tensors, **options)
        return window_attention(q, k, v, **past, **window_options) + result.reads, result.final_state

    return call, own | other


CALL = {"scan": {"lag": 6, "past": 6, "per_token": True, "rule": "gated_delta"}, "window": {"window": 6, "past": 5, "position": 9}}


def test_opcheck():
    inputs, options = scan_inputs(T=9, lag=3, past=2, per_token=True, rule="delta", dtype=torch.float32)
    tensors = [x.requires_grad_() for x in inputs.values()]
    scan = torch.ops.tensorcache.memory_scan.default
    torch.library.opcheck(scan, (*tensors, 3, "delta", "exact", 0, True))
    inputs, options = scan_inputs(T=9, dtype=torch.float32)
    q, k, v, g, b, initial = inputs.values()
    torch.library.opcheck(scan, (q, k, v, g, b, None, None, None, None, initial, 0, "outer", "exact", 0, False))
    inputs, options = window_inputs(T=9, window=4, past=2, position=2, sinks=1, q_sink=True, dtype=torch.float32)
    tensors = [x.requires_grad_() for x in inputs.values()]
    torch.library.opcheck(torch.ops.tensorcache.window_attention.default, (*tensors, 4, 2, None))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_of_the_whole_graph(backend):
    call, tensors = both(**CALL)
    eager, compiled = leaves(tensors, torch.float32), leaves(tensors, torch.float32)
    expected = call(eager)
    actual = torch.compile(call, fullgraph=True, backend=backend)(compiled)
    weights = [torch.randn_like(out) for out in expected]
    for out, other in zip(actual, expected):
        near(out, other)
    for gradient, other in zip(gradients_of(compiled, actual, weights), gradients_of(eager, expected, weights)):
        near(gradient, other)


def test_rows_with_gaps_and_any_strides():
    call, tensors = both(**CALL)
    expected = call(tensors)

    def gapped(x):
        return torch.stack((x, torch.full_like(x, torch.nan)), -1).flatten(-2)[..., ::2]

    def turned(x):
        return x.transpose(0, -1).contiguous().transpose(0, -1)

    for change in (gapped, turned):
        own = {name: change(x).requires_grad_() for name, x in tensors.items()}
        for out, other in zip(call(own), expected):
            near(out, other)
        for gradient in gradients_of(own, call(own), [torch.ones(()), torch.ones(())]):
            assert gradient.isfinite().all()
    fused = torch.randn(2, 20, 4 + 2 + 2, 6)  # slices of one projection
    q, k, v = fused.split_with_sizes((4, 2, 2), 2)
    near(window_attention(q, k, v, window=5), window_attention(q.contiguous(), k.contiguous(), v.contiguous(), window=5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    call, tensors = both(**CALL)
    rounded = {name: x.to(dtype) for name, x in tensors.items()}
    expected = call({name: x.float() for name, x in rounded.items()})
    own = {name: x.requires_grad_() for name, x in rounded.items()}
    out, state = call(own)
    assert out.dtype == dtype and state.dtype == torch.float32
    torch.testing.assert_close(out.float(), expected[0], rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)
    near(state, expected[1])
    for x, gradient in zip(own.values(), gradients_of(own, (out, state), (torch.ones(()), torch.ones(())))):
        assert gradient.dtype == x.dtype


def test_autocast():
    call, tensors = both(**CALL)
    projection = torch.nn.Linear(6, 6, bias=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        own = {name: projection(x) if name in "qkv" else x for name, x in tensors.items()}
        assert own["q"].dtype == torch.bfloat16
        out, _ = call(own)
    out.sum().backward()
    assert out.dtype == torch.bfloat16 and projection.weight.grad.isfinite().all()


def test_vmap_is_refused():
    q = torch.randn(3, 2, 5, 2, 4)
    with pytest.raises(tc.UnsupportedError, match="batch dimension of its own"):
        torch.vmap(lambda x: window_attention(x, x, x, window=2))(q)
    with pytest.raises(tc.UnsupportedError, match="batch dimension of its own"):
        torch.vmap(lambda x: memory_scan(x, x, x, torch.zeros(2), torch.ones(2)).reads)(q)


def test_second_derivatives_are_refused_or_right():
    inputs, options = window_inputs(B=1, T=4, H=1, G=1, D=2, Dv=2, window=3)
    single, exact = leaves(inputs, torch.float32), leaves(inputs, torch.float64)
    (gradient,) = torch.autograd.grad(window_attention(**single, **options).sum(), single["q"], create_graph=True)
    with pytest.raises(RuntimeError):
        gradient.sum().backward()
    assert torch.autograd.gradgradcheck(lambda q, k, v: window_attention(q, k, v, **options), list(exact.values()))


def test_other_devices_take_tensor_operations():
    call, tensors = both(**CALL)
    expected = call(tensors)
    for scan in SCANS:
        inputs, options = scan_inputs(**scan)
        expected = memory_scan(**inputs, **options)
        moved = memory_scan(**{name: x.to("meta") for name, x in inputs.items()}, **options)
        assert [x.shape for x in moved] == [x.shape for x in expected] and moved.reads.device.type == "meta"
    for window in WINDOWS:
        inputs, options = window_inputs(**window)
        moved = window_attention(**{name: x.to("meta") for name, x in inputs.items()}, **options)
        assert moved.shape == window_attention(**inputs, **options).shape and moved.device.type == "meta"


def test_results_do_not_depend_on_the_number_of_threads():
    call, tensors = both(**CALL)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            own = leaves(tensors, torch.float32)
            out = call(own)
            results.append([*out, *gradients_of(own, out, [torch.ones(()), torch.ones(())])])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(results[0], other))


def test_many_threads_at_once():
    call, tensors = both(**CALL)
    expected = call(tensors)
    wrong = []

    def run():
        for _ in range(20):
            if not all(torch.equal(x, y) for x, y in zip(call(tensors), expected)):
                wrong.append(1)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def in_child(queue):
    torch.set_num_threads(2)
    q = torch.ones(4, 8, 2, 4)
    queue.put(window_attention(q, q, q, window=3).sum().item())


def test_a_forked_process_has_threads_of_its_own():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        q = torch.ones(4, 8, 2, 4)
        expected = window_attention(q, q, q, window=3).sum().item()
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=in_child, args=(queue,))
        child.start()
        assert queue.get(timeout=60) == expected
        child.join(60)
        assert child.exitcode == 0
    finally:
        torch.set_num_threads(threads)


def test_divergence_is_an_error():
    k = 3 * torch.ones(1, 600, 1, 4)
    with pytest.raises(tc.DivergedError, match="normalise the keys"):
        memory_scan(k, k, k, torch.zeros(1), torch.ones(1), rule="delta")


Q = torch.zeros(2, 5, 4, 6)
KV = torch.zeros(2, 5, 2, 6)
ONE = torch.zeros(2)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: memory_scan(Q, KV, KV, ONE, ONE, rule="euter"), "rule is 'euter'; it can be one of"),
        (lambda: memory_scan(Q, KV, KV, ONE, ONE, mode="chunky"), "mode is 'chunky'"),
        (lambda: memory_scan(Q, KV, KV, ONE, ONE, mode="chunk_start"), "chunk of at least 1"),
        (lambda: memory_scan(Q, KV, KV, ONE, ONE, lag=-1), "lag must not be negative"),
        (lambda: memory_scan(Q[0], KV, KV, ONE, ONE), "4 dimensions"),
        (lambda: memory_scan(Q, KV[:1], KV, ONE, ONE), r"k must have sizes \(2, 5, 2, 6\), not \(1, 5, 2, 6\)"),
        (lambda: memory_scan(Q, KV, KV[..., :5], ONE, ONE, rule="wedge"), "same width"),
        (lambda: memory_scan(Q[:, :, :3], KV, KV, ONE, ONE), "multiple of key/value heads"),
        (lambda: memory_scan(Q, KV, KV, torch.zeros(3), ONE), "log_decay must have sizes"),
        (lambda: memory_scan(Q, KV, KV, ONE, ONE, past_k=KV.transpose(1, 2), lag=9), "come together"),
        (
            lambda: memory_scan(Q, KV, KV, KV[..., 0], ONE, past_k=KV.transpose(1, 2), past_v=KV.transpose(1, 2), lag=9),
            "past needs a log_decay for each token",
        ),
        (lambda: memory_scan(Q, KV, KV, ONE, ONE, initial=torch.zeros(2, 2, 6, 5)), "initial must have sizes"),
        (lambda: window_attention(Q, KV, KV, window=-1), "window must not be negative"),
        (lambda: window_attention(Q, KV, KV[:, :4]), "v must have sizes"),
        (lambda: window_attention(Q[:, :, :3], KV, KV), "multiple of G"),
        (lambda: window_attention(Q, KV, KV, past_k=KV.transpose(1, 2), past_v=KV.transpose(1, 2)), "before position 0"),
        (lambda: window_attention(Q, KV, KV, sink_k=KV.transpose(1, 2)), "come together"),
        (lambda: window_attention(Q, KV, KV, q_sink=KV), "q_sink must have sizes"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(tc.InvalidArgumentError, match=message):
        call()


def test_composites_are_what_the_ops_are_without_kernels():
    """The same in float32: the two halves of a model on two devices agree."""
    inputs, options = scan_inputs(lag=5, past=3, dtype=torch.float32)
    names = ["q", "k", "v", "log_decay", "write_strength", "past_k", "past_v", "past_log_decay", "past_write_strength", "initial"]
    composite = memory_scan_composite(*(inputs.get(name) for name in names), 5, "outer", "exact", 0)
    for out, other in zip(memory_scan(**inputs, **options), composite):
        near(out, other)
    inputs, options = window_inputs(window=4, dtype=torch.float32)
    composite = window_attention_composite(*inputs.values(), *(None,) * 5, 4, 0, None)
    near(window_attention(**inputs, **options), composite)


def test_inputs_are_left_alone():
    call, tensors = both(**CALL)
    before = copy.deepcopy(tensors)
    call(tensors)
    assert all(torch.equal(x, before[name]) for name, x in tensors.items())
