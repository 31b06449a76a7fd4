"""attention() under torch.compile: one op in one graph, and the very numbers of eager code."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

import attn_backends as ab
from attn_backends.integrations import compiled
from tests.selector.scenes import BOX

SHAPE = (2, 5, 4, 16)
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "lse": {"causal": True, "return_lse": True},
    "window and softcap": {"causal": True, "window_left": 2, "softcap": 5.0, "return_lse": True},
    "dropout with a seed": {"dropout_p": 0.3, "dropout_seed": 4},
    "custom scale": {"softmax_scale": 0.0},
    "bhsd": {"layout": "bhsd", "return_lse": True},
    "out dtype": {"out_dtype": torch.float64},
    "policy": {"policy": ab.Policy(block={"sdpa_cpu_flash"})},
    "backend": {"backend": "eager"},
}


def qkv(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random q, k, v of one shape."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(SHAPE, generator=generator) for _ in range(3))
    return q, k, v


def whole_graph(**arguments: Any) -> Any:
    """attention() with these arguments, compiled without a graph break."""
    return torch.compile(lambda q, k, v: ab.attention(q, k, v, **arguments), fullgraph=True, backend="aot_eager")


def launches_of(backend: str) -> int:
    """Launches of a backend over all decisions."""
    return sum(record.launches for record in ab.launches().values() if record.backend == backend)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    """Each test compiles its own graphs."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", FEATURES)
def test_compiled_is_eager_bit_for_bit(name):
    """A compiled call gives the bits of the eager one, LSE included."""
    arguments = FEATURES[name]
    q, k, v = qkv()
    got, want = whole_graph(**arguments)(q, k, v), ab.attention(q, k, v, **arguments)
    pairs = zip(got, want, strict=True) if arguments.get("return_lse") else [(got, want)]
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("name", ["causal", "lse", "window and softcap", "dropout with a seed"])
def test_compiled_gradients_are_the_eager_ones(name):
    """Gradients through a compiled call, through the LSE too, are those of eager code."""
    arguments = FEATURES[name]
    grads = []
    for run in (whole_graph(**arguments), lambda q, k, v: ab.attention(q, k, v, **arguments)):
        leaves = [tensor.requires_grad_() for tensor in qkv(1)]
        result = run(*leaves)
        (result if isinstance(result, torch.Tensor) else result[0].sum() + result[1].sum()).sum().backward()
        grads.append([leaf.grad for leaf in leaves])
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want)


def test_gradients_of_mask_and_sinks_cross_the_graph():
    """A float mask and sinks that need gradients get them, compiled as in eager code."""
    grads = []
    for compile_it in (True, False):
        q, k, v = qkv(2)
        mask = torch.randn(5, 5, generator=torch.Generator().manual_seed(3)).requires_grad_()
        sinks = torch.tensor([0.0, 1.0, -1.0, 2.0]).requires_grad_()

        def call(q, k, v, mask, sinks):
            return ab.attention(q, k, v, attn_mask=mask, sinks=sinks)

        run = torch.compile(call, fullgraph=True, backend="aot_eager") if compile_it else call
        run(q, k, v, mask, sinks).square().sum().backward()
        grads.append((mask.grad, sinks.grad))
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want)


def test_packed_and_paged_calls_compile():
    """Lengths, tables and block masks go through the op as tensors."""
    q, k, v = (tensor.reshape(10, 4, 16) for tensor in qkv(4))
    cu = torch.tensor([0, 3, 10], dtype=torch.int32)
    packed = {
        "layout": "thd",
        "cu_seqlens_q": cu,
        "cu_seqlens_k": cu,
        "max_seqlen_q": 7,
        "max_seqlen_k": 7,
        "causal": True,
    }
    assert torch.equal(whole_graph(**packed)(q, k, v), ab.attention(q, k, v, **packed))
    cache = torch.randn(6, 4, 4, 16)
    table = torch.tensor([[5, 1], [0, 3]], dtype=torch.int32)
    paged = {"block_table": table, "seq_lens": torch.tensor([5, 8], dtype=torch.int32), "causal": True}
    query = torch.randn(2, 1, 4, 16)
    assert torch.equal(whole_graph(**paged)(query, cache, cache), ab.attention(query, cache, cache, **paged))
    blocks = ab.BlockMask(torch.tensor([[[[True, False], [True, True]]]]), 3)
    sparse = {"block_mask": blocks, "return_lse": True}
    q, k, v = qkv(5)
    got, want = whole_graph(**sparse)(q, k, v), ab.attention(q, k, v, **sparse)
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


def test_a_scope_is_read_when_the_graph_runs():
    """The decision is made at run time: a scope around the compiled call counts."""
    run = whole_graph(causal=True)
    q, k, v = qkv(6)
    run(q, k, v)
    before = launches_of("eager")
    with ab.use("eager"):
        run(q, k, v)
    assert launches_of("eager") == before + 1


EVERYTHING = dict.fromkeys(BOX, "any") | {"device": ["cpu"], "backward": "any", "causal_alignment": "any"}


@pytest.mark.parametrize("change", ["scope left", "scope entered", "blocked by a knob", "unregistered"])
def test_the_backward_is_that_of_the_forwards_backend(change, monkeypatch):
    """Scopes, knobs and registrations between forward and backward decide nothing anew."""

    def backward(call, d_out, d_lse):
        return ab.Grads(q=torch.full_like(call.q, 9.0), k=torch.zeros_like(call.k), v=torch.zeros_like(call.v))

    ab.register({"name": "nines", "capability": [EVERYTHING]}, lambda call: call.out.fill_(2.0), backward=backward)
    run = whole_graph(causal=True)
    q, k, v = qkv(8)
    q.requires_grad_()
    with ab.use("nines"):
        out = run(q, k, v)
        if change == "unregistered":
            ab.unregister("nines")
        if change == "blocked by a knob":
            monkeypatch.setenv("ATTN_BACKENDS_BLOCK", "nines")
        if change != "scope left":
            with ab.use("eager") if change == "scope entered" else contextlib.nullcontext():
                out.sum().backward()
    if change == "scope left":
        out.sum().backward()
    if change != "unregistered":
        ab.unregister("nines")
    assert (out == 2.0).all()
    assert (q.grad == 9.0).all()


def test_a_ticket_that_nobody_left_is_an_error():
    """A backward without its forward says so."""
    with pytest.raises(ab.LoadError, match="forward"):
        compiled._bound_of(torch.tensor(-1))


ILLEGAL = {
    "causal": 1, "return_lse": 0, "window_left": True, "window_right": -1.0, "dropout_p": False, "softcap": True,
    "dropout_seed": "x", "layout": 3, "alibi_slopes": torch.ones(4, requires_grad=True),
}  # fmt: skip


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_is_illegal_in_eager_code_is_illegal_compiled(name):
    """A RequestError that names the argument, where the op's schema would convert it or the compiler wrap the error."""
    with pytest.raises(ab.RequestError, match=name):
        whole_graph(**{name: ILLEGAL[name]})(*qkv())


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_of_64_bits_crosses_the_graph(seed):
    """The largest one drops what it drops in eager code; one beyond is refused."""
    q, k, v = qkv()
    largest = {"dropout_p": 0.3, "dropout_seed": 2**64 - 1}
    assert torch.equal(whole_graph(**largest)(q, k, v), ab.attention(q, k, v, **largest))
    with pytest.raises(ab.RequestError, match="dropout_seed"):
        whole_graph(dropout_p=0.3, dropout_seed=seed)(q, k, v)


@pytest.mark.parametrize("grads", [False, True], ids=["forward", "with gradients"])
def test_the_op_is_clean(grads):
    """`opcheck` finds nothing: schema, fake kernel, autograd registration and dynamic shapes agree."""
    q, k, v = (tensor.requires_grad_(grads) for tensor in qkv(7))
    tensors = [None] * 13
    wanted = [grads, grads, grads, False, False]
    scalars = ["bshd", True, "bottom_right", -1, -1, None, None, None, None, "NHD", 0.0, True, False, False, False, None,
               None, "decoder", None, None, None, None, None, None, None, None]  # fmt: skip
    outcome = torch.library.opcheck(compiled.attention_op, (q, k, v, *tensors, wanted, [], *scalars))
    assert set(outcome.values()) == {"SUCCESS"}
