"""The written-out gradients, against torch's autograd of a naive dense formula and against finite differences."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from attn_backends import attention
from attn_backends.backends.eager.adapter import backward, run
from attn_backends.backends.eager.philox import philox4x32, seed_words
from attn_backends.call import Call, Grads
from attn_backends.errors import RequestError
from tests.backends.eager_calls import Scene, call_of, scene
from tests.backends.test_eager_features import HEADS, INF, features, token_mask

SEQ_Q, SEQ_K = [5, 5], [7, 3]
F64 = torch.float64
NAMES = tuple(name for name in features(1, 1, 1) if name != "scale-zero")


def naive(call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, sinks: Any, b: int) -> Any:
    """One sequence q [Sq, Hq, D], k, v [Sk, Hkv, .] with K and V repeated, -inf filled in, and torch.softmax."""
    ratio = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(ratio, 1), v.repeat_interleave(ratio, 1)
    s = torch.einsum("ihd,jhd->hij", q, k) * call.softmax_scale
    if call.softcap:
        s = call.softcap * torch.tanh(s / call.softcap)
    i = torch.arange(len(q))[:, None] + (len(k) - len(q) if call.causal_alignment == "bottom_right" else 0)
    j = torch.arange(len(k))[None]
    hidden = torch.zeros(s.shape, dtype=torch.bool)
    if call.causal:
        hidden |= j > i
    if call.window_left >= 0:
        hidden |= j < i - call.window_left
    if call.window_right >= 0:
        hidden |= j > i + call.window_right
    if mask is not None:
        mine = mask.expand(len(call.q), HEADS, SEQ_Q[0], max(SEQ_K))[b, :, :, : len(k)]
        hidden |= ~mine if mask.dtype == torch.bool else mine.detach() == -INF
        s = s if mask.dtype == torch.bool else s + torch.where(mine.detach() == -INF, 0.0, mine)
    if call.block_mask is not None:
        tokens = token_mask(call.block_mask, SEQ_Q[0], max(SEQ_K)).expand(len(call.q), HEADS, -1, -1)
        hidden |= ~tokens[b, :, :, : len(k)]
    if call.alibi_slopes is not None:
        slopes = call.alibi_slopes.expand(len(call.q), -1)[b].to(F64)
        s = s - slopes[:, None, None] * (i - j).abs()
    dead = hidden.all(-1, keepdim=True)
    s = torch.where(hidden, -INF, s)
    if sinks is not None:
        s, dead = torch.cat([s, sinks.to(F64)[:, None, None].expand(-1, len(q), 1)], -1), torch.zeros_like(dead)
        dead = torch.isinf(s.detach()).all(-1, keepdim=True)
    s = torch.where(dead, 0.0, s)
    p = torch.where(dead, 0.0, torch.softmax(s, -1))[..., : len(k)]
    lse = torch.where(dead[..., 0], 0.0, torch.logsumexp(s, -1))
    if call.dropout_p:
        where = torch.meshgrid(torch.arange(HEADS), torch.arange(len(q)), torch.arange(len(k)), indexing="ij")
        words = philox4x32((where[2], where[1], where[0], torch.tensor(b)), seed_words(call.dropout_seed))
        p = p * (words[0].double() >= call.dropout_p * 2**32) / (1 - call.dropout_p)
    return torch.einsum("hij,jhd->ihd", p, v), lse


def by_autograd(given: Scene, call: Call, d_out: torch.Tensor, d_lse: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gradients of sum(out * d_out) + sum(lse * d_lse) over a dense batch, keys behind seq_lens left at 0."""
    leaves = [[t.clone().requires_grad_() for t in ts] for ts in (given.q, given.k, given.v)]
    mask = call.attn_mask
    if mask is not None and mask.is_floating_point():
        mask = mask.clone().requires_grad_()
    sinks = None if call.sinks is None else call.sinks.clone().requires_grad_()
    total = torch.zeros((), dtype=F64)
    for b, (q, k, v) in enumerate(zip(*leaves, strict=True)):
        out, lse = naive(call, q, k, v, mask, sinks, b)
        total = total + (out * d_out[b]).sum() + (lse * d_lse[b]).sum()
    total.backward()

    def padded(rows: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        grad = torch.zeros_like(like)
        for b, row in enumerate(rows):
            grad[b, : len(row)] = 0.0 if row.grad is None else row.grad
        return grad

    grads = {
        "q": padded(leaves[0], call.q),
        "k": padded(leaves[1], call.k),
        "v": padded(leaves[2], call.v),
    }
    if mask is not None and mask.is_floating_point():
        assert mask.grad is not None
        grads["bias"] = mask.grad
    if sinks is not None:
        assert sinks.grad is not None
        grads["sinks"] = sinks.grad
    return grads


def gradient_inputs(call: Call, seed: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    assert call.lse is not None
    d_out = torch.randn(call.out.shape, generator=generator, dtype=F64)
    return d_out, torch.randn(call.lse.shape, generator=generator, dtype=F64)


@pytest.mark.parametrize("feature", NAMES)
def test_gradients_equal_those_of_autograd(feature: str) -> None:
    """Through every feature, into q, k, v, the float mask and the sinks, and out of the LSE too."""
    given = scene(SEQ_Q, SEQ_K, dtype=F64)
    args = features(2, *given.longest)[feature]
    if "attn_mask" in args and args["attn_mask"].is_floating_point():
        args["attn_mask"] = args["attn_mask"].to(F64)
    call = call_of(given, lse_dtype=F64, grad_bias=True, grad_sinks=True, **args)
    d_out, d_lse = gradient_inputs(call)
    want = by_autograd(given, call, d_out, d_lse)
    got = backward(call, d_out, d_lse)
    assert (got.bias is not None, got.sinks is not None) == ("bias" in want, "sinks" in want)
    for name, expected in want.items():
        atol = 1e-6 if name == "sinks" else 1e-12  # sinks, and their gradient, are float32
        torch.testing.assert_close(getattr(got, name), expected, atol=atol, rtol=1e-6 if name == "sinks" else 1e-9)


class Through(torch.autograd.Function):
    """The pair as an autograd function, for gradcheck."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, args: dict[str, Any]) -> Any:
        shape = (q.shape[0], q.shape[2], q.shape[1])
        call = Call(
            q=q, k=k, v=v, attn_mask=mask, out=torch.empty(*q.shape[:-1], v.shape[-1], dtype=F64),
            lse=torch.empty(shape, dtype=F64), grad_bias=True, **args,
        )  # fmt: skip
        run(call)
        ctx.call = call
        return call.out, torch.nan_to_num(call.lse, neginf=0.0)

    @staticmethod
    def backward(ctx: Any, d_out: torch.Tensor, d_lse: torch.Tensor) -> Any:
        grads = backward(ctx.call, d_out, d_lse)
        return grads.q, grads.k, grads.v, grads.bias, None


def test_gradients_equal_finite_differences() -> None:
    """gradcheck on a tiny shape with an empty row, softcap, dropout, GQA and a broadcast bias."""
    generator = torch.Generator().manual_seed(1)
    q, k, v, mask = (
        torch.randn(*shape, generator=generator, dtype=F64).requires_grad_()
        for shape in ((1, 3, 2, 2), (1, 2, 1, 2), (1, 2, 1, 3), (2, 1, 2))
    )
    args = {
        "causal": True, "softcap": 1.2, "softmax_scale": 0.8, "dropout_p": 0.3, "dropout_seed": 77,
        "alibi_slopes": torch.tensor([0.5, 0.1]), "sinks": torch.tensor([-INF, 0.2]),
    }  # fmt: skip
    assert torch.autograd.gradcheck(lambda *leaves: Through.apply(*leaves, args), (q, k, v, mask))


@pytest.mark.parametrize("layout", ["bhsd", "thd"])
def test_gradients_have_the_layout_of_their_tensors(layout: str) -> None:
    """Whatever the layout, each sequence gets the gradients it gets alone; tails and padding get 0."""
    given = scene([4, 4], [6, 3], dtype=F64)
    call = call_of(given, layout, causal=True)
    d_out, d_lse = gradient_inputs(call)
    got = backward(call, d_out, d_lse)
    for name in ("q", "k", "v"):
        rows = per_sequence(getattr(got, name), given, layout, name)
        for b, row in enumerate(rows):
            one = Scene(q=[given.q[b]], k=[given.k[b]], v=[given.v[b]])
            alone = call_of(one, causal=True)
            take = per_sequence(d_out, given, layout, "q")[b][None]
            take_lse = d_lse[:, 4 * b : 4 * b + 4][None] if layout == "thd" else d_lse[b : b + 1]
            want = getattr(backward(alone, take, take_lse), name)[0, : len(row)]
            assert torch.equal(row, want)
    inside = sum(row.abs().sum() for row in per_sequence(got.k, given, layout, "k"))
    torch.testing.assert_close(got.k.abs().sum(), inside)


def per_sequence(tensor: torch.Tensor, given: Scene, layout: str, name: str) -> list[torch.Tensor]:
    rows = [len(t) for t in getattr(given, name)]
    if layout == "thd":
        return list(tensor[: sum(rows)].split(rows))
    return [tensor.transpose(1, 2)[b, :n] for b, n in enumerate(rows)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_have_the_dtype_of_their_tensors(dtype: torch.dtype) -> None:
    """Half types are computed in float32 and rounded once; bias and sinks keep their own dtypes."""
    exact = scene(SEQ_Q, SEQ_K, dtype=dtype)
    args = features(2, *exact.longest)["everything"] | {"grad_bias": True, "grad_sinks": True}
    call = call_of(exact, **args)
    wide = call_of(Scene(q=to64(exact.q), k=to64(exact.k), v=to64(exact.v)), **args)
    d_out, d_lse = gradient_inputs(call)
    got, want = backward(call, d_out.to(dtype), d_lse.float()), backward(wide, d_out.to(dtype).to(F64), d_lse)
    unit = torch.finfo(dtype).eps
    for name, like in (("q", call.q), ("k", call.k), ("v", call.v), ("bias", call.attn_mask), ("sinks", call.sinks)):
        have, wanted = getattr(got, name), getattr(want, name)
        assert have.dtype == like.dtype
        assert have.shape == like.shape
        torch.testing.assert_close(have.to(F64), wanted.to(F64), atol=max(unit, 1e-5), rtol=max(unit, 1e-5))


def to64(rows: list[torch.Tensor]) -> list[torch.Tensor]:
    return [row.to(F64) for row in rows]


@pytest.mark.parametrize(
    ("keys", "args"),
    [
        ([6], {"causal": True, "causal_alignment": "top_left"}),
        ([6], {"attn_mask": torch.tensor([True, False, True, False, False, False]).expand(3, 6)}),
        ([6], {"attn_mask": torch.tensor([0.0, -INF, 0.5, -INF, -INF, -INF]).expand(3, 6)}),
    ],
    ids=["behind-causal", "bool-mask", "float-mask"],
)
def test_a_key_that_nobody_sees_gets_no_gradient_even_if_it_holds_nan(keys: list[int], args: dict[str, Any]) -> None:
    """NaN in hidden keys leaves every gradient bit-equal, and theirs exactly 0."""
    given = scene([3], keys)
    hidden = [3, 4, 5]
    clean, dirty = call_of(given, grad_bias=True, **args), call_of(given, grad_bias=True, **args)
    dirty.k[:, hidden] = math.nan
    dirty.v[:, hidden] = math.inf
    d_out, d_lse = gradient_inputs(clean)
    want, got = backward(clean, d_out, d_lse), backward(dirty, d_out, d_lse)
    for name in ("q", "k", "v", "bias"):
        one, two = getattr(want, name), getattr(got, name)
        assert one is two is None or torch.equal(one, two)
    assert not got.k[:, hidden].any()
    assert not got.v[:, hidden].any()


def test_empty_rows_give_no_gradient_whatever_flows_into_them() -> None:
    """Even NaN and inf arriving at a row with no key stop there."""
    given = scene([5], [2])
    call = call_of(given, causal=True)
    d_out, d_lse = gradient_inputs(call)
    want = backward(call, d_out, d_lse)
    d_out[:, :3], d_lse[:, :, :3] = math.nan, math.inf
    got = backward(call, d_out, d_lse)
    for name in ("q", "k", "v"):
        assert torch.equal(getattr(want, name), getattr(got, name))
    assert not got.q[:, :3].any()


@pytest.mark.parametrize("tensor", ["q", "k", "v"])
def test_a_nan_stays_out_of_the_gradients_of_what_its_row_does_not_see(tensor: str) -> None:
    """Row 1 holds or sees a NaN; key 0 and row 0, which have nothing to do with it, keep their gradients bit by bit."""
    given = scene([2], [3])
    args = {"attn_mask": torch.tensor([[True, True, False], [False, True, True]]), "softcap": 3.0}
    clean, dirty = call_of(given, **args), call_of(given, **args)
    getattr(dirty, tensor)[:, 1 if tensor == "q" else 2] = math.nan
    d_out, d_lse = gradient_inputs(clean)
    want, got = backward(clean, d_out, d_lse), backward(dirty, d_out, d_lse)
    for name in ("q", "k", "v"):
        assert torch.equal(getattr(want, name)[:, 0], getattr(got, name)[:, 0])
    assert bool(got.q[:, 1].isnan().all())


def test_no_lse_gradient_is_a_zero_lse_gradient() -> None:
    """d_lse None and d_lse zeros are the same call."""
    call = call_of(scene(SEQ_Q, SEQ_K), causal=True)
    d_out, d_lse = gradient_inputs(call)
    none, zero = backward(call, d_out, None), backward(call, d_out, torch.zeros_like(d_lse))
    assert all(torch.equal(getattr(none, name), getattr(zero, name)) for name in ("q", "k", "v"))
    assert isinstance(none, Grads)
    assert none.bias is none.sinks is None


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8], ids=str)
@pytest.mark.parametrize("granularity", ["per_tensor", "per_head", "per_channel"])
def test_a_quantised_q_is_read_by_its_scale_in_the_gradients_of_the_others(
    granularity: str, dtype: torch.dtype
) -> None:
    """K, V, float mask and sinks get what they get beside the numbers that q stands for; q, which holds codes, gets none."""
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    codes = (drawn(2, 5, 4, 8) * 20).round().clamp(-100, 100).to(dtype)
    shape = {"per_tensor": (), "per_head": (4,), "per_channel": (4, 8)}[granularity]
    descale = torch.rand(shape, generator=generator) * 0.1 + 0.01
    k, v, mask, sinks = drawn(2, 7, 2, 8).bfloat16(), drawn(2, 7, 2, 6).bfloat16(), drawn(4, 5, 7).bfloat16(), drawn(4)
    numbers = codes.float() * (descale.reshape(4, 1) if granularity == "per_head" else descale)
    found = []
    for q, more in ((codes, {"q_descale": descale, "q_granularity": granularity}), (numbers, {})):
        leaves = [x.to(q.dtype if not more else x.dtype).requires_grad_() for x in (k, v, mask)] + [
            sinks.clone().requires_grad_()
        ]
        out, lse = attention(
            q, *leaves[:2], attn_mask=leaves[2], sinks=leaves[3], causal=True, return_lse=True, backend="eager", **more
        )
        found.append(torch.autograd.grad(out.float().sum() + lse.sum(), leaves))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got.float(), want.float(), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_gradient_of_codes_is_refused(name: str) -> None:
    """An fp8 tensor that asks for a gradient would get one that is not its own: the call says so."""
    tensors = {one: torch.ones(1, 2, 1, 8).to(torch.bfloat16) for one in "qkv"}
    tensors[name] = tensors[name].to(torch.float8_e4m3fn).requires_grad_()
    with pytest.raises(RequestError, match=f"{name}.*quantised tensor that requires a gradient.*detached"):
        attention(*tensors.values(), **{f"{name}_descale": 1.0})
