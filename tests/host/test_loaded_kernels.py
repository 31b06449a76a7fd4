"""`decision.load()`: the chosen kernel for hot loops, bound to the decision's scalars, checked once per shape."""

from __future__ import annotations

import pytest
import torch

from attn_backends import (
    NoBackendError,
    Policy,
    Request,
    RequestError,
    UnfitBackendError,
    attention,
    launches,
    register,
    select,
    unregister,
)
from attn_backends.device import Device
from tests.selector.scenes import BOX

CPU = Device.of("cpu")


def tensors(sq=3, sk=5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sq + sk)
    shapes = ((1, sq, 4, 8), (1, sk, 2, 8), (1, sk, 2, 8))
    return tuple(torch.randn(*shape, generator=generator).to(dtype) for shape in shapes)


def loaded(*qkv, backend=None, **given):
    return select(Request.from_tensors(*qkv, **given), backend=backend, device=CPU).load()


CASES = {
    "plain": {},
    "causal": {"causal": True},
    "softcap": {"softcap": 2.0, "softmax_scale": 0.2},
    "window": {"causal": True, "window_left": 1, "causal_alignment": "top_left"},
    "lse": {"return_lse": True},
}


@pytest.mark.parametrize("given", CASES.values(), ids=CASES.keys())
def test_it_is_the_call(given):
    """The loaded kernel gives what attention() gives, bit for bit, at other lengths as well."""
    fn = loaded(*tensors(), **given)
    for sizes in ((3, 5), (3, 5), (1, 9), (7, 7)):
        q, k, v = tensors(*sizes)
        got, want = fn(q, k, v), attention(q, k, v, **given)
        pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
        assert all(torch.equal(x, y) for x, y in pairs)


def test_it_counts_in_the_ledger():
    """Each call is a launch under a decision for its backend."""
    fn = loaded(*tensors(), backend="eager")
    before = sum(record.launches for record in launches().values() if record.backend == "eager")
    for _ in range(4):
        fn(*tensors())
    assert sum(record.launches for record in launches().values() if record.backend == "eager") == before + 4


def test_it_never_runs_what_it_does_not_declare():
    """A call outside the backend's boxes raises; it is not swapped and not run unchecked."""
    fn = loaded(*tensors(), backend="sdpa_cpu_flash")
    with pytest.raises(UnfitBackendError, match="sinks"):
        fn(*tensors(), sinks=torch.zeros(4))


def test_a_scalar_given_later_counts():
    """A scalar argument of one call is not forgotten because the shape was seen before, nor remembered for the next."""
    q, k, v = tensors()
    fn = loaded(q, k, v)
    plain, causal = attention(q, k, v), attention(q, k, v, causal=True)
    assert torch.equal(fn(q, k, v), plain)
    assert torch.equal(fn(q, k, v, causal=True), causal)
    assert torch.equal(fn(q, k, v), plain)


def test_an_unknown_argument_is_named():
    """A misspelt argument, and a tensor that is none, are RequestErrors."""
    q, k, v = tensors()
    fn = loaded(q, k, v)
    with pytest.raises(RequestError, match=r"causl.*causal"):
        fn(q, k, v, causl=True)
    with pytest.raises(RequestError, match="ndarray"):
        fn(q.numpy(), k, v)


def test_it_keeps_the_granularity_it_was_decided_for():
    """A descale whose shape means two things goes on meaning what the request said."""
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(1, 3, 4, 8, generator=generator)
    k, v = (torch.randint(-9, 9, (1, 2, 2, 8), generator=generator, dtype=torch.int8) for _ in range(2))
    scales = {"k_descale": torch.rand(1, 2, 2, generator=generator), "v_descale": 1.0, "scale_block": 1}
    named = {"k_granularity": "block"}
    fn = loaded(q, k, v, **scales, **named)
    assert torch.equal(fn(q, k, v, **scales), attention(q, k, v, **scales, **named))


def test_pointers_and_devices_are_part_of_what_was_checked():
    """A shape seen before is checked again where its memory is less aligned, or k and v lie elsewhere."""
    box = {**BOX, "device": ["cpu"], "alignment": 16}
    register({"name": "aligned", "capability": [box], "priority": 999}, lambda call: call.out.fill_(1.0))
    try:
        memory = torch.zeros(1 * 3 * 4 * 8 + 1)
        q, k, v = tensors()
        fn = loaded(q, k, v, backend="aligned")
        fn(q, k, v)
        with pytest.raises(UnfitBackendError, match="alignment"):
            fn(memory[1:].view(1, 3, 4, 8), k, v)
        with pytest.raises(RequestError, match="meta"):
            fn(q, k.to("meta"), v)
    finally:
        unregister("aligned")


def test_it_takes_further_tensors():
    """Lengths and masks are read anew at each call."""
    q, k, v = tensors()
    fn = loaded(q, k, v, seq_lens=torch.tensor([5], dtype=torch.int32))
    for length in (5, 2, 0):
        lens = torch.tensor([length], dtype=torch.int32)
        assert torch.equal(fn(q, k, v, seq_lens=lens), attention(q, k, v, seq_lens=lens))


def test_it_reads_the_tensors_it_is_given():
    """A mask, sinks and slopes reach a kernel that converts nothing, also where the shape was seen without them."""
    q, k, v = tensors()
    fn = loaded(q, k, v, backend="eager")
    more = {"attn_mask": torch.eye(3, 5).bool(), "sinks": torch.ones(4), "alibi_slopes": torch.ones(4)}
    for name, value in more.items():
        fn(q, k, v)
        assert torch.equal(fn(q, k, v, **{name: value}), attention(q, k, v, **{name: value}, backend="eager"))


def test_it_is_differentiable_where_the_request_was():
    """Loaded for a differentiable call, it records gradients."""
    q, k, v = (x.requires_grad_() for x in tensors())
    out = loaded(q, k, v)(q, k, v)
    got = torch.autograd.grad(out.sum(), (q, k, v))
    want = torch.autograd.grad(attention(q, k, v).sum(), (q, k, v))
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


def test_nothing_chosen_cannot_be_loaded():
    """A decision without a backend raises NoBackendError with its explanation."""
    request = Request.from_tensors(*tensors(), softcap=2.0)
    decision = select(request, device=CPU, policy=Policy(only=["sdpa_cpu_flash"]))
    with pytest.raises(NoBackendError, match="softcap"):
        decision.load()


def test_the_scope_it_was_loaded_in_stays_with_it():
    """A kernel loaded for a backend stays that backend, whatever policy holds where it is called."""
    fn = loaded(*tensors(), backend="eager")
    assert fn.decision.backend == "eager"
    assert torch.equal(fn(*tensors()), attention(*tensors(), backend="eager"))
