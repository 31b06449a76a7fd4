"""The ends of the number range: hidden keys as large as a dtype goes, and softcaps that no float32 holds."""

from __future__ import annotations

import pytest
import torch

from attn_backends import attention
from attn_backends.backends.torch_sdpa.masking import with_finite_scores

BACKENDS = ("eager", "sdpa_math", "sdpa_cpu_flash")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LAST = 7  # the key that the last row alone sees
SEEN = torch.ones(8, 8).bool().tril()
HIDING = {
    "causal": {"causal": True},
    "window": {"causal": True, "window_left": 2},
    "lengths": {"causal": True, "seq_lens": torch.tensor([8, 8], dtype=torch.int32)},
    "mask": {"attn_mask": SEEN},
    "bias": {"attn_mask": torch.zeros(8, 8).masked_fill(~SEEN, -torch.inf)},
}


def tensors(dtype):
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(2, 8, 2, 16, generator=generator) * 3).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("given", HIDING.values(), ids=HIDING.keys())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_largest_number_hidden_from_a_row_leaves_it_alone(backend, dtype, given, sign):
    """K and V at the end of the dtype's range: rows that do not see them have the same bits, output and dq."""
    found = []
    for fill in (None, sign * torch.finfo(dtype).max):
        q, k, v = tensors(dtype)
        if fill is not None:
            k[:, LAST], v[:, LAST] = fill, fill
        with torch.no_grad():
            out = attention(q, k, v, backend=backend, **given)[:, :LAST]
        if "attn_mask" not in given or given["attn_mask"].dtype == torch.bool or backend != "sdpa_cpu_flash":
            attention(q.requires_grad_(), k, v, backend=backend, **given)[:, :LAST].sum().backward()
        found.append((out, torch.zeros(()) if q.grad is None else q.grad[:, :LAST]))
    for x, y in zip(*found, strict=True):
        assert torch.isfinite(x).all()
        assert torch.equal(x, y)


def test_ordinary_keys_are_never_bounded():
    """A query of inf, NaN or the largest number bounds no key below the root of the range; 1e30 stays beside |q| = 3."""
    k = torch.tensor([[[[1e18, -1e18, 3.0]]]])
    for wild in (torch.inf, torch.nan, 3.4e38):
        assert torch.equal(with_finite_scores(k, torch.full((1, 1, 1, 3), wild), 1.0), k)
    k = torch.tensor([[[[1e30, -1e30, 3.0]]]])
    assert torch.equal(with_finite_scores(k, torch.full((1, 1, 1, 3), 3.0), 1.0), k)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("cap", [3e38, 1e39, 1e300])
def test_a_softcap_that_no_float32_holds_caps_nothing(cap, dtype):
    """Output and gradients are those of the call without it."""
    found = []
    for given in ({}, {"softcap": cap}):
        q, k, v = (x.requires_grad_() for x in tensors(dtype))
        out = attention(q, k, v, backend="eager", **given)
        found.append((out, *torch.autograd.grad(out.sum(), (q, k, v))))
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y)


def test_a_softcap_that_is_zero_in_float32_makes_every_key_alike():
    """Scores within 1e-300 of each other weigh the same; gradients are finite."""
    q, k, v = tensors(torch.float32)
    q[:, 0] = 0.0
    q.requires_grad_()
    out = attention(q, k, v, backend="eager", softcap=1e-300)
    torch.testing.assert_close(out, v.mean(1, keepdim=True).expand_as(out))
    assert torch.autograd.grad(out.sum(), q)[0].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_output_gradients_and_values_at_the_end_of_the_range(dtype):
    """dO.v leaves every float: rows that do not see the large V keep a finite dq, and nothing raises."""
    q, k, v = (x.requires_grad_() for x in tensors(dtype))
    largest = torch.finfo(dtype).max
    with torch.no_grad():
        v[:, LAST] = largest
    out = attention(q, k, v, causal=True, backend="sdpa_cpu_flash")
    d_out = torch.ones_like(out)
    d_out[:, LAST] = largest
    (d_q,) = torch.autograd.grad(out, q, d_out)
    assert d_q[:, :LAST].isfinite().all()
    assert d_q[:, 1:LAST].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_of_a_group_are_summed_in_float32(dtype):
    """Eight query heads of one KV head, alike: dV is eight times that of one, to the last bit."""
    q, k, v = (torch.randn(1, 2, 40, 16, generator=torch.Generator().manual_seed(n)).to(dtype) for n in range(3))
    found = []
    for heads in (1, 8):
        leaves = [x.requires_grad_() for x in (k[:, :1].clone(), v[:, :1].clone())]
        out = attention(
            q[:, :1].expand(1, heads, 40, 16), *leaves, layout="bhsd", causal=True, backend="sdpa_cpu_flash"
        )
        found.append(torch.autograd.grad(out.sum(), leaves))
    for one, eight in zip(*found, strict=True):
        assert torch.equal(one * 8, eight)
