"""Gradients through the host's one autograd function: out and LSE, GQA, masks, sinks, strided gradients."""

from __future__ import annotations

import pytest
import torch

from attn_backends import BlockMask, UnfitBackendError, attention, merge_states

DOUBLE = torch.float64


def leaves(*shapes, seed=0, dtype=DOUBLE):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=DOUBLE).to(dtype).requires_grad_() for shape in shapes]


QKV = ((2, 3, 4, 4), (2, 5, 2, 4), (2, 5, 2, 3))
SMALL = ((1, 3, 2, 2), (1, 5, 1, 2), (1, 5, 1, 2))
CASES = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window_left": 1},
    "top-left": {"causal": True, "causal_alignment": "top_left"},
    "scale": {"softmax_scale": 0.3},
    "softcap": {"softcap": 1.5},
    "mask": {"attn_mask": torch.tensor([[True, False, True, True, False]] * 2 + [[False] * 5])},
    "lengths": {"seq_lens": torch.tensor([3], dtype=torch.int32)},
    "alibi": {"alibi_slopes": torch.linspace(0.1, 0.4, 2)},
    "dropout": {"dropout_p": 0.3, "dropout_seed": 4},
}


@pytest.mark.parametrize("given", CASES.values(), ids=CASES.keys())
def test_gradients_are_the_derivatives(given):
    """torch's gradcheck on the output, by finite differences in float64."""
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, **given, backend="eager"), leaves(*SMALL))


def _finite(lse):
    return lse.masked_fill(lse == -torch.inf, 0.0)


@pytest.mark.parametrize("given", [{}, {"causal": True}, {"softcap": 1.0}], ids=["plain", "causal", "softcap"])
def test_the_lse_is_differentiable(given):
    """The gradient through the LSE is the softmax times the gradient of the scores, as autograd has it."""
    q, k, v = leaves(*QKV)
    _, lse = attention(q, k, v, return_lse=True, backend="eager", **given)
    got = torch.autograd.grad(lse.sum(), (q, k))
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(2, dim=2)) / 2
    if "softcap" in given:
        scores = torch.tanh(scores)
    if given.get("causal"):
        scores = scores.masked_fill(~torch.ones(3, 5, dtype=torch.bool).tril(2), -torch.inf)
    want = torch.autograd.grad(scores.logsumexp(-1).sum(), (q, k))
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5)


def test_split_keys_merge_with_the_gradients_of_the_whole():
    """Two halves merged by LSE have the output and the gradients of one call."""
    q, k, v = leaves(*QKV)
    whole = attention(q, k, v, backend="eager")
    parts = [attention(q, k[:, a:b], v[:, a:b], return_lse=True, backend="eager") for a, b in ((0, 2), (2, 5))]
    merged, _ = merge_states(*parts[0], *parts[1])
    torch.testing.assert_close(merged, whole, atol=1e-6, rtol=1e-6)
    weights = torch.linspace(-1, 1, whole.numel(), dtype=DOUBLE).view(whole.shape)
    got, want = (torch.autograd.grad((x * weights).sum(), (q, k, v)) for x in (merged, whole))
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5)


def test_sinks_and_float_masks_have_gradients():
    """Both get the derivative, shaped like themselves, in their dtype."""
    q, k, v = leaves(*QKV, dtype=torch.float32)
    sinks = torch.linspace(-1, 1, 4).requires_grad_()
    mask = torch.linspace(-1, 1, 15).view(3, 5).requires_grad_()
    out = attention(q, k, v, sinks=sinks, attn_mask=mask)
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(2, dim=2)) / 2 + mask
    weights = torch.cat([scores, sinks.view(1, 4, 1, 1).expand(2, 4, 3, 1)], -1).softmax(-1)[..., :-1]
    reference = torch.einsum("bhij,bjhd->bihd", weights, v.repeat_interleave(2, dim=2))
    upstream = torch.linspace(-1, 1, out.numel()).view(out.shape)
    got, want = (torch.autograd.grad((x * upstream).sum(), (q, k, v, sinks, mask)) for x in (out, reference))
    for x, y in zip(got, want, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("backend", ["eager", "sdpa_math", "sdpa_cpu_flash"])
@pytest.mark.parametrize("kind", ["expanded", "transposed", "sliced"])
def test_any_stride_of_the_gradient_is_legal(backend, kind):
    """dO may come expanded, transposed or sliced."""
    q, k, v = leaves(*QKV, dtype=torch.float32)
    out = attention(q, k, v, backend=backend)
    d_out = {
        "expanded": torch.ones(1, 1, 1, 1).expand(out.shape),
        "transposed": torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(1)).transpose(1, 2),
        "sliced": torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(1))[..., ::2],
    }[kind]
    got = torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)
    want = torch.autograd.grad(out, (q, k, v), d_out.contiguous())
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "wanted", [(True, False, False), (False, True, False), (False, False, True)], ids=["q", "k", "v"]
)
@pytest.mark.parametrize("backend", ["eager", "sdpa_math", "sdpa_cpu_flash"])
def test_one_input_alone_may_want_a_gradient(backend, wanted):
    """The others get none, and the one gets what it would get among all."""
    tensors = leaves(*QKV, dtype=torch.float32)
    all_of_them = torch.autograd.grad(attention(*tensors, backend=backend).sum(), tensors)
    alone = [x.detach().requires_grad_(want) for x, want in zip(tensors, wanted, strict=True)]
    attention(*alone, backend=backend).sum().backward()
    for tensor, want, reference in zip(alone, wanted, all_of_them, strict=True):
        assert (tensor.grad is not None) == want
        if want:
            torch.testing.assert_close(tensor.grad, reference)


def test_without_grad_mode_nothing_is_recorded():
    """Under no_grad and inference_mode the output has no history, and forward-only backends serve."""
    q, k, v = leaves(*QKV, dtype=torch.float32)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert not attention(q, k, v).requires_grad
    assert attention(q, k, v).requires_grad


def test_a_second_derivative_is_refused():
    """The backward is differentiable once; asking twice raises instead of giving something wrong."""
    q, k, v = leaves(*QKV)
    (grad,) = torch.autograd.grad(attention(q, k, v, backend="eager").sum(), q, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(grad.sum(), k)


def test_gradients_into_a_quantised_cache_are_refused():
    """No backend declares a backward there: the forced one says so."""
    q, k, v = leaves(*QKV, dtype=torch.float32)
    with pytest.raises(UnfitBackendError, match="backward"):
        attention(q, k.detach().to(torch.int8), v, k_descale=1.0, backend="eager")


CHANGED = {
    "seq_lens": (QKV, torch.tensor([3, 5], dtype=torch.int32)),
    "alibi_slopes": (QKV, torch.linspace(0.1, 0.4, 4)),
    "attn_mask": (QKV, torch.ones(3, 5).bool()),
    "sinks": (QKV, torch.zeros(4)),
    "cu_seqlens_q": (((5, 4, 4), (5, 2, 4), (5, 2, 3)), torch.tensor([0, 2, 5], dtype=torch.int32)),
    "block_mask": (QKV, BlockMask(torch.ones(1, 1, 1, 2).bool(), 3)),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_the_backward_reads_may_not_change_before_it(name):
    """A tensor written to between forward and backward is torch's own version error, never another gradient."""
    shapes, value = CHANGED[name]
    given = {name: value if name == "block_mask" else value.clone()}
    if name == "cu_seqlens_q":
        given |= {"layout": "thd", "cu_seqlens_k": value.clone()}
    out = attention(*leaves(*shapes, dtype=torch.float32), **given)
    (value.blocks if name == "block_mask" else given[name]).fill_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_the_graph_may_be_walked_twice():
    """retain_graph=True gives the same gradients again."""
    q, k, v = leaves(*QKV, dtype=torch.float32)
    loss = attention(q, k, v, causal=True).square().sum()
    first = torch.autograd.grad(loss, (q, k, v), retain_graph=True)
    second = torch.autograd.grad(loss, (q, k, v))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
