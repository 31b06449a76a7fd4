"""Under autocast a call computes what it says: dtypes, numbers and gradients are those of the call outside."""

from __future__ import annotations

import pytest
import torch

from attn_backends import Grads, Request, attention, register, select, unregister
from tests.selector.scenes import BOX

BACKENDS = ("eager", "sdpa_math", "sdpa_cpu_flash")


def tensors():
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(1, 33, 2, 32, generator=generator) for _ in range(3)]


@pytest.mark.parametrize("given", [{}, {"return_lse": True}, {"attn_mask": torch.ones(33, 33).bool().tril()}],
                         ids=["plain", "lse", "mask"])  # fmt: skip
@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_changes_no_number(backend, given):
    """Output and LSE are bit-equal inside and outside, and in q's dtype."""
    want = attention(*tensors(), backend=backend, **given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = attention(*tensors(), backend=backend, **given)
    for x, y in zip(*[z if isinstance(z, tuple) else (z,) for z in (got, want)], strict=True):
        assert (x.dtype, torch.equal(x, y)) == (y.dtype, True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_changes_no_gradient(backend):
    """Forward and backward inside give the gradients of the call outside."""
    found = []
    for enabled in (False, True):
        leaves = [x.requires_grad_() for x in tensors()]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            attention(*leaves, causal=True, backend=backend).sum().backward()
        found.append([x.grad for x in leaves])
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


def test_no_callable_of_a_backend_sees_autocast():
    """`run` on the hot path, bound anew and loaded, `plan` and `backward`: all of them run without it."""
    seen = {}

    def note(name):
        seen.setdefault(name, []).append(torch.is_autocast_enabled("cpu"))

    def backward(call, d_out, d_lse):
        note("backward")
        return Grads(q=call.q, k=call.k, v=call.v)

    box = {**BOX, "device": ["cpu"], "alignment": 1, "backward": [False, True]}
    register({"name": "watching", "capability": [box]}, lambda _: note("run"), backward=backward)
    register({"name": "planning", "capability": [box]}, lambda _: note("run"), plan=lambda _: note("plan"))
    q, k, v = tensors()
    kernel = select(Request.from_tensors(q, k, v), backend="watching").load()
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for _ in range(3):
                attention(q, k, v, backend="watching")
                kernel(q, k, v)
            attention(q, k, v, backend="planning")
            attention(q.requires_grad_(), k, v, backend="watching").sum().backward()
            assert torch.is_autocast_enabled("cpu")
    finally:
        unregister("watching")
        unregister("planning")
    assert seen == {"run": [False] * 8, "plan": [False], "backward": [False]}
