"""`decision.load()`: the chosen kernel for hot loops, bound to the decision's scalars, checked once per shape."""

from __future__ import annotations

import pytest
import torch

from attn_backends import NoBackendError, Policy, Request, UnfitBackendError, attention, launches, select
from attn_backends.device import Device

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


def test_it_takes_further_tensors():
    """Lengths and masks are read anew at each call."""
    q, k, v = tensors()
    fn = loaded(q, k, v, seq_lens=torch.tensor([5], dtype=torch.int32))
    for length in (5, 2, 0):
        lens = torch.tensor([length], dtype=torch.int32)
        assert torch.equal(fn(q, k, v, seq_lens=lens), attention(q, k, v, seq_lens=lens))


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
