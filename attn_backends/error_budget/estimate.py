"""`quantization_error`: every way to quantise against float64, on the tensors that shall be quantised."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from attn_backends.error_budget.budget import ErrorBudget, OptionError
from attn_backends.error_budget.formats import through, weights_through
from attn_backends.error_budget.hadamard import rotated
from attn_backends.error_budget.options import BITS, OPTIONS, Option
from attn_backends.errors import RequestError
from attn_backends.fields import FLAG, SCALE, SOFTCAP, Check, Field, whole

SEED = Check(lambda value: type(value) is int and 0 <= value < 2**63, "a whole number from 0 to 2**63 - 1", "int")
NUMBERS = (
    Field("causal", FLAG), Field("window_left", whole(-1)), Field("window_right", whole(-1)), Field("rows", whole(1)),
    Field("softmax_scale", SCALE), Field("softcap", SOFTCAP), Field("seed", SEED),
)  # fmt: skip
LARGEST = torch.finfo(torch.float32).max  # with it squares of outputs and products of three stay within float64
LAYOUTS = {"bshd": (0, 2, 1, 3), "bhsd": (0, 1, 2, 3)}  # to [B, H, S, D]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """q [Hq, Sq, D], k [Hkv, Sk, D], v [Hkv, Sk, Dv] of one sequence, float64; `rows` of q are computed."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    rows: torch.Tensor
    scale: float
    softcap: float | None
    band: tuple[int, int]


def quantization_error(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    layout: str = "bshd",
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softmax_scale: float | None = None,
    softcap: float | None = None,
    options: Sequence[str] | None = None,
    rows: int = 64,
    seed: int = 0,
) -> ErrorBudget:
    """The relative error of each way to quantise, on these tensors, before any kernel runs.

    q: [B, Sq, Hq, D] (`bshd`) or [B, Hq, Sq, D] (`bhsd`), k and v likewise with Sk, Hkv, D and Dv; any floating dtype and
        device; finite, within float32's range. Masks as `attention` has them, causal on the bottom-right diagonal.
    options: names of `attn_backends.error_budget.options.OPTIONS`; None for all, in their order.
    rows: query rows per head that are computed, evenly spread, first and last included; all keys are used.
    seed: of the random rotation.

    The model of a kernel: numbers rounded once where they are stored, products and sums exact, weights rounded as the
    second product's unit takes them. A kernel's own accumulation adds to that. Raises RequestError for a wrong argument.
    """
    chosen = _options(options)
    _check_numbers((causal, window_left, window_right, rows, softmax_scale, softcap, seed))
    _check(q, k, v, layout)
    order = LAYOUTS[layout]
    q, k, v = (tensor.detach().permute(order).double() for tensor in (q, k, v))
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    picked = torch.linspace(0, q.shape[2] - 1, min(rows, q.shape[2]), device=q.device).round().long()
    band = (
        math.inf if window_left < 0 else window_left,
        0 if causal else math.inf if window_right < 0 else window_right,
    )
    limits = tuple(int(min(limit, q.shape[2] + k.shape[2])) for limit in band)
    calls = [
        _Call(q=q[b], k=k[b], v=v[b], rows=picked, scale=scale, softcap=softcap, band=(limits[0], limits[1]))
        for b in range(q.shape[0])
    ]
    right = [_attention(call, call.q, call.k, call.v, "") for call in calls]
    widths = (k.shape[-1], v.shape[-1])
    made = tuple(_judge(one, [_quantised(call, one, seed) for call in calls], right, widths) for one in chosen)
    return ErrorBudget(options=made, rows=len(picked), keys=k.shape[2])


def _options(names: Sequence[str] | None) -> tuple[Option, ...]:
    if names is None:
        return OPTIONS
    known = {one.name: one for one in OPTIONS}
    if isinstance(names, str):
        raise RequestError("options", names, "a list of names")
    for name in names:
        if name not in known:
            raise RequestError("options", name, "one of " + ", ".join(known))
    return tuple(known[name] for name in names)


def _check_numbers(given: tuple[object, ...]) -> None:
    """In the order of NUMBERS."""
    for field, value in zip(NUMBERS, given, strict=True):
        field.verify(value)
    scale = given[4]
    if isinstance(scale, int | float) and abs(scale) > LARGEST:
        raise RequestError("softmax_scale", scale, "a number within float32's range")


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: str) -> None:
    if layout not in LAYOUTS:
        raise RequestError("layout", layout, "one of " + ", ".join(LAYOUTS))
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check_plain(name, tensor)
        if tensor.dim() != 4 or not tensor.is_floating_point() or tensor.element_size() < 2 or not tensor.numel():
            allowed = "4 dims, none of them empty, of a floating dtype of 16 bits or more"
            raise RequestError(name, f"{tuple(tensor.shape)} {tensor.dtype}", allowed)
    heads = 2 if layout == "bshd" else 1
    tokens = 3 - heads
    if k.shape[:3] != v.shape[:3]:
        raise RequestError("v", tuple(v.shape), f"k's batch, length and heads {tuple(k.shape[:3])}")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or q.shape[heads] % k.shape[heads]:
        raise RequestError("k", tuple(k.shape), f"q's batch and width, and heads that divide q's: {tuple(q.shape)}")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not bool(tensor.isfinite().all()):
            raise RequestError(name, "inf or NaN", f"finite numbers in all {tensor.shape[tokens]} tokens")
        if float(tensor.abs().max()) > LARGEST:
            raise RequestError(name, f"{float(tensor.abs().max()):.3g}", "numbers within float32's range")


def _check_plain(name: str, tensor: object) -> None:
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_meta:
        raise RequestError(name, type(tensor).__name__, "a strided torch.Tensor with data")


def _quantised(call: _Call, option: Option, seed: int) -> torch.Tensor:
    """The output of the sampled rows under an option: [Hq, R, Dv]."""
    q, k = call.q, call.k
    if option.rotated:
        q, k = rotated(q, seed), rotated(k, seed)
    q, k, v = (
        through(values, name, option.granularity) for values, name in ((q, option.q), (k, option.k), (call.v, option.v))
    )
    return _attention(call, q, k, v, option.weights)


def _attention(call: _Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, weights: str) -> torch.Tensor:
    """The sampled rows in float64, KV head by KV head: [Hq, R, Dv]. A row that sees no key is 0."""
    return torch.cat([_group(call, *group, weights) for group in _groups(q[:, call.rows], k, v)])


def _groups(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    size = q.shape[0] // k.shape[0]
    for head in range(k.shape[0]):
        yield q[head * size : (head + 1) * size], k[head], v[head]


def _group(call: _Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, weights: str) -> torch.Tensor:
    scores = (q @ k.T) * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    scores = scores.masked_fill(~_visible(call), -math.inf)
    top = scores.amax(dim=-1, keepdim=True)
    p = torch.exp(scores - torch.where(top.isfinite(), top, torch.zeros_like(top)))
    total = p.sum(dim=-1, keepdim=True)
    return (weights_through(p, weights) @ v) / torch.where(total > 0, total, torch.ones_like(total))


def _visible(call: _Call) -> torch.Tensor:
    """[R, Sk] bool: inside the band around the diagonal that ends at the last key."""
    place = (call.rows + call.k.shape[1] - call.q.shape[1]).unsqueeze(-1)
    keys = torch.arange(call.k.shape[1], device=call.k.device)
    left, right = call.band
    return (keys >= place - left) & (keys <= place + right)


def _judge(option: Option, got: list[torch.Tensor], right: list[torch.Tensor], widths: tuple[int, int]) -> OptionError:
    """`widths`: of K and of V."""
    off = torch.stack([one - other for one, other in zip(got, right, strict=True)])  # [B, Hq, R, Dv]
    whole = torch.stack(right)
    heads = _relative(off.pow(2).sum(dim=(0, 2, 3)), whole.pow(2).sum(dim=(0, 2, 3)))
    worst = int(heads.argmax())
    return OptionError(
        name=option.name, summary=option.summary,
        relative=float(_relative(off.pow(2).sum(), whole.pow(2).sum())),
        worst_head=float(heads[worst]), head=worst, largest=float(off.abs().max()),
        kv_bytes=sum(width * BITS.get(name, 16) / 8 for width, name in zip(widths, (option.k, option.v), strict=True)),
    )  # fmt: skip


def _relative(off: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Of sums of squares: sqrt(off / whole); 0 where both are."""
    return torch.where(off > 0, off / whole, torch.zeros_like(off)).sqrt()
