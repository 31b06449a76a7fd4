"""What numba_mma is compared with eager in float64 on: a table of calls that have something nasty about them.

In the simulator (tests/backends/numba_mma_simulated.py) on any machine, and on a GPU; lengths are no multiples of a tile.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch

from attn_backends.backends.eager import adapter as eager
from attn_backends.call import Call

NAN = float("nan")
# Of a row's output, relative; and of an LSE. P and the output are rounded to 16 bits.
LIMITS = {"float16": (1e-3, 1e-5), "bfloat16": (8e-3, 1e-5)}
# name: (batch, Sq, Sk, Hq, Hkv, further fields of the call). `starts` makes it a packed call; `poison`: keys that no query
# sees, in K and V; `huge`: keys that some queries see, in K and V; `views`: how q, k, v lie in memory.
CASES: dict[str, tuple[int, int, int, int, int, dict[str, Any]]] = {
    "plain": (2, 33, 70, 2, 2, {}),
    "whole tiles": (1, 64, 128, 1, 1, {}),
    "one query": (2, 1, 131, 4, 1, {"causal": True}),
    "causal": (1, 130, 130, 2, 1, {"causal": True}),
    "causal behind a prefix": (1, 67, 150, 1, 1, {"causal": True}),
    "more queries than keys": (1, 100, 30, 2, 2, {"causal": True}),
    "from the first key": (1, 70, 30, 1, 1, {"causal": True, "causal_alignment": "top_left"}),
    "from the first key, more keys": (1, 30, 140, 1, 1, {"causal": True, "causal_alignment": "top_left", "poison": slice(30, None)}),
    "window": (1, 100, 170, 1, 1, {"causal": True, "window_left": 20, "poison": slice(0, 50)}),
    "window of oneself": (1, 70, 70, 1, 1, {"window_left": 0, "window_right": 0}),
    "window on both sides": (1, 80, 150, 2, 1, {"window_left": 33, "window_right": 5}),
    "window to the right": (1, 80, 66, 1, 1, {"window_right": 3}),
    "window from the first key": (1, 40, 200, 1, 1, {"window_left": 9, "window_right": 70, "causal_alignment": "top_left", "poison": slice(110, None)}),
    "window that shows nothing": (1, 90, 3, 1, 1, {"window_left": 0, "window_right": 0}),
    "window wider than all": (1, 35, 40, 1, 1, {"window_left": 2**62, "window_right": 2**62}),
    "softcap": (1, 40, 70, 1, 1, {"softcap": 2.0, "causal": True}),
    "large softcap": (1, 40, 70, 1, 1, {"softcap": 3e4}),
    "endless softcap": (1, 20, 40, 1, 1, {"softcap": 1e300}),
    "tiny softcap": (1, 20, 40, 1, 1, {"softcap": 1e-300}),
    "negative scale": (1, 40, 70, 1, 1, {"softmax_scale": -0.4, "causal": True}),
    "no scale": (1, 20, 70, 1, 1, {"softmax_scale": 0.0, "causal": True}),
    "steep scale": (1, 20, 70, 1, 1, {"softmax_scale": 30.0}),
    "negative scale and softcap": (1, 20, 70, 1, 1, {"softmax_scale": -0.4, "softcap": 1.5}),
    "no keys": (2, 5, 0, 2, 1, {}),
    "four heads to one": (1, 20, 70, 4, 1, {"causal": True}),
    "eight heads to one": (1, 20, 70, 16, 2, {"causal": True}),
    "huge numbers beside the mask": (1, 70, 70, 1, 1, {"causal": True, "huge": slice(69, None)}),
    "heads first": (2, 33, 70, 2, 1, {"layout": "bhsd", "causal": True}),
    "rows of a projection": (2, 33, 33, 2, 2, {"views": "joint", "causal": True}),
    "one head for all": (1, 20, 70, 4, 4, {"views": "expanded"}),
    "backwards in memory order": (2, 33, 70, 2, 2, {"views": "permuted"}),
    "single tokens of odd strides": (2, 1, 1, 2, 1, {"views": "odd", "causal": True}),
    "packed": (0, 90, 140, 2, 1, {"starts": ((0, 1, 1, 70, 90), (0, 7, 9, 90, 140)), "causal": True}),
    "packed, some without keys": (0, 40, 80, 1, 1, {"starts": ((0, 0, 17, 17, 40), (0, 5, 5, 5, 80))}),
    "packed, rows of nobody": (0, 60, 90, 2, 2, {"starts": ((0, 10, 21), (0, 30, 70)), "causal": True, "poison": slice(70, None)}),
    "packed, nobody has rows": (0, 9, 4, 1, 1, {"starts": ((0, 0), (0, 0)), "poison": slice(0, None)}),
    "packed, window": (0, 100, 100, 1, 1, {"starts": ((0, 30, 100), (0, 30, 100)), "window_left": 12, "causal": True}),
    "packed, from the first key": (0, 60, 100, 1, 1, {"starts": ((0, 20, 60), (0, 70, 100)), "causal": True, "causal_alignment": "top_left"}),
}  # fmt: skip


def call_of(name: str, head_dim: int, dtype: torch.dtype, device: str) -> Call:
    """The call of a case, on fresh numbers, its results poisoned."""
    batch, seq_q, seq_k, heads, kv_heads, given = CASES[name]
    given = dict(given)
    starts, poison, huge = given.pop("starts", None), given.pop("poison", None), given.pop("huge", None)
    views = given.pop("views", "plain")
    torch.manual_seed(0)
    sizes = [(*([batch] if batch else []), *rest, head_dim) for rest in ((seq_q, heads), *[(seq_k, kv_heads)] * 2)]
    q, k, v = laid_out(views, sizes, dtype, device)
    for keys, number in ((poison, NAN), (huge, 1e30 if dtype is torch.bfloat16 else 6e4)):
        if keys is not None:
            k[..., keys, :, :] = number
            v[..., keys, :, :] = number
    if given.get("layout") == "bhsd":
        q, k, v = (tensor.transpose(1, 2).contiguous() for tensor in (q, k, v))
    if starts:
        q_starts, k_starts = (torch.tensor(one, dtype=torch.int32, device=device) for one in starts)
        longest = (max(b - a for a, b in pairwise(one)) for one in starts)
        given |= {"layout": "thd", "cu_seqlens_q": q_starts, "cu_seqlens_k": k_starts}
        given |= dict(zip(("max_seqlen_q", "max_seqlen_k"), longest, strict=True))
    return Call(
        q=q, k=k, v=v, out=torch.full(q.shape, NAN, dtype=dtype, device=device),
        lse=torch.full((batch, heads, seq_q) if batch else (heads, seq_q), NAN, device=device),
        **{"softmax_scale": head_dim**-0.5, **given},
    )  # fmt: skip


def laid_out(views: str, sizes: list[tuple[int, ...]], dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """q, k and v: apart; side by side in one projection; one head for all of them; the axes in another order."""
    made = [torch.randn(size, device=device).to(dtype) for size in sizes]
    if views == "joint":
        width = sum(size[-2] for size in sizes)
        joint = torch.full((*sizes[0][:-2], width + 1, sizes[0][-1]), NAN, device=device).to(dtype)
        parts = joint[..., :width, :].split([size[-2] for size in sizes], -2)
        return [part.copy_(one) for part, one in zip(parts, made, strict=True)]
    if views == "expanded":
        return [made[0], *(one[..., :1, :].expand(one.shape) for one in made[1:])]
    if views == "permuted":
        return [one.permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3) for one in made]
    if views == "odd":
        return [one.as_strided(one.shape, (one.stride(0), 7, *one.stride()[2:])) for one in made]
    return made


def difference(call: Call) -> dict[str, float]:
    """The largest differences from eager in float64, output and LSE, and the output's as a share of its rounding's."""
    right = Call(**{**vars(call), "out": torch.empty_like(call.out, dtype=torch.double)})
    right.q, right.k, right.v = (tensor.double() for tensor in (call.q, call.k, call.v))
    assert call.lse is not None
    right.lse = torch.empty_like(call.lse)
    eager.run(right)
    if not torch.equal(torch.isneginf(call.lse), torch.isneginf(right.lse)):
        return {"out": math.inf, "lse": math.inf}
    seen = ~torch.isneginf(right.lse)
    rows = seen if call.layout == "bhsd" else seen.transpose(-1, -2)
    if not bool((call.out[~rows] == 0).all()):
        return {"out": math.inf, "lse": 0.0}
    error = (call.out[rows].double() - right.out[rows]).norm(dim=-1) / right.out[rows].norm(dim=-1)
    lse = (call.lse[seen].double() - right.lse[seen].double()) / right.lse[seen].double().abs().clamp(min=1.0)
    return {"out": _worst(error), "lse": _worst(lse)}


def _worst(errors: torch.Tensor) -> float:
    if not errors.numel():
        return 0.0
    return float(errors.abs().max()) if bool(errors.isfinite().all()) else math.inf
