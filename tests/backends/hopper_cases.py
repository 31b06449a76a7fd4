"""Calls for the Hopper pipelines as a table, and how far an answer lies from float64. Needs a GPU to run."""

from __future__ import annotations

import math
from typing import Any

import torch

from attn_backends.backends.hopper.adapter import run
from attn_backends.call import Call

WIDTHS = (64, 128, 256)
# (sequences, query heads, KV heads, queries, keys): whole and ragged tiles, one query, more and fewer keys than queries,
# rows that see nothing (Sq > Sk under the diagonal), and 0, 1, 2, an odd number and more than 132 tickets.
SHAPES: dict[str, tuple[int, int, int, int, int]] = {
    "no queries": (1, 2, 2, 0, 64),
    "no keys": (1, 2, 2, 64, 0),
    "one ticket": (1, 1, 1, 64, 64),
    "two tickets": (1, 2, 2, 17, 200),
    "one query": (1, 4, 4, 1, 1000),
    "an odd number of tickets": (3, 3, 1, 129, 65),
    "whole tiles": (2, 4, 2, 256, 256),
    "ragged tiles": (1, 2, 2, 300, 300),
    "more keys": (3, 8, 1, 1000, 1111),
    "fewer keys": (1, 2, 2, 1111, 700),
    "more tickets than multiprocessors": (1, 40, 40, 1024, 1024),
}


def call_of(
    shape: tuple[int, int, int, int, int], width: int, *, causal: bool, layout: str = "bshd", **fields: Any
) -> Call:
    """Random inputs, and outputs that hold NaN until they are written."""
    batch, heads, kv_heads, seq_q, seq_k = shape

    def tensor(tokens: int, count: int) -> torch.Tensor:
        size = (batch, tokens, count, width) if layout == "bshd" else (batch, count, tokens, width)
        return torch.randn(size, device="cuda", dtype=torch.bfloat16)

    q, k, v = tensor(seq_q, heads), tensor(seq_k, kv_heads), tensor(seq_k, kv_heads)
    lse = torch.full((batch, heads, seq_q), math.nan, device="cuda")
    given = {"out": torch.full_like(q, math.nan), "lse": lse, "softmax_scale": width**-0.5, "layout": layout}
    return Call(q=q, k=k, v=v, causal=causal, **{**given, **fields})


def differences(call: Call) -> dict[str, float]:
    """Run the call; relative error of the output, largest error of the LSE, rows whose emptiness is wrong."""
    run(call)
    out, lse = expected(call)
    got = _heads_first(call.out, call.layout).double()
    seen = ~lse.isinf()
    return {
        "out": _ratio((got - out).norm(), out.norm()),
        "lse": float((call.lse.double() - lse)[seen].abs().max()) if seen.any() else 0.0,
        "empty": float((call.lse.isinf() != lse.isinf()).sum() + (got[~seen] != 0).sum()),
    }


def expected(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [B, H, S, D] and LSE in float64."""
    q, k, v = (_heads_first(tensor, call.layout).double() for tensor in (call.q, call.k, call.v))
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) * call.softmax_scale
    if call.causal:
        query = torch.arange(q.shape[2], device=q.device)[:, None] + k.shape[2] - q.shape[2]
        scores = scores.masked_fill(torch.arange(k.shape[2], device=q.device) > query, -math.inf)
    lse = torch.logsumexp(scores, -1) if k.shape[2] else torch.full(scores.shape[:3], -math.inf, device=q.device)
    weights = torch.exp(scores - torch.where(lse.isinf(), 0.0, lse)[..., None])
    return weights @ v.repeat_interleave(group, 1), lse


def _heads_first(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    return tensor.transpose(1, 2) if layout == "bshd" else tensor


def _ratio(error: torch.Tensor, size: torch.Tensor) -> float:
    return float(error) if size == 0 else float(error / size)
