"""Build `Call`s out of logical sequences, in every layout, with NaN wherever nothing may be read; and read them back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from attn_backends.backends.eager.adapter import run
from attn_backends.call import Call

LAYOUTS = ("bshd", "bhsd", "thd", "NHD", "HND", "NHD-packed")
PAGE = 4
NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Per sequence: q [sq, Hq, D], k [sk, Hkv, D], v [sk, Hkv, Dv]."""

    q: list[torch.Tensor]
    k: list[torch.Tensor]
    v: list[torch.Tensor]

    @property
    def longest(self) -> tuple[int, int]:
        return max(len(q) for q in self.q), max(len(k) for k in self.k)


def scene(
    seq_q: list[int],
    seq_k: list[int],
    *,
    heads: tuple[int, int] = (4, 2),
    width: tuple[int, int] = (8, 6),
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Scene:
    """Normal numbers, rounded to the dtype; the same seed gives the same sequence whatever stands behind it."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    drawn = [
        (normal(a, heads[0], width[0]), normal(b, heads[1], width[0]), normal(b, heads[1], width[1]))
        for a, b in zip(seq_q, seq_k, strict=True)
    ]
    return Scene(q=[q for q, _, _ in drawn], k=[k for _, k, _ in drawn], v=[v for _, _, v in drawn])


def call_of(given: Scene, layout: str = "bshd", lse_dtype: torch.dtype = torch.float32, **args: Any) -> Call:
    """The scene as one call; `args` are further fields of Call."""
    q, more = _queries(given, layout)
    k, v, keys = _keys(given, layout)
    lse_shape = (q.shape[1], q.shape[0]) if q.dim() == 3 else (len(given.q), given.q[0].shape[1], given.longest[0])
    out = torch.full((*q.shape[:-1], given.v[0].shape[-1]), NAN, dtype=q.dtype)
    fields: dict[str, Any] = {
        "softmax_scale": given.q[0].shape[-1] ** -0.5,
        "max_seqlen_q": given.longest[0],
        "max_seqlen_k": given.longest[1],
        "layout": layout if layout in ("bshd", "bhsd") else "thd" if q.dim() == 3 else "bshd",
        "lse": torch.full(lse_shape, NAN, dtype=lse_dtype),
        **more,
        **keys,
        **args,
    }
    return Call(q=q, k=k, v=v, out=out, **fields)


def _queries(given: Scene, layout: str) -> tuple[torch.Tensor, dict[str, Any]]:
    if layout in ("thd", "NHD-packed"):
        return _with_tail(given.q), {"cu_seqlens_q": starts(given.q)}
    assert len({len(q) for q in given.q}) == 1, "dense queries have one length"
    q = torch.stack(given.q)
    return (q.transpose(1, 2).contiguous() if layout == "bhsd" else q), {}


def _keys(given: Scene, layout: str) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    if layout == "thd":
        return _with_tail(given.k), _with_tail(given.v), {"cu_seqlens_k": starts(given.k)}
    lengths = torch.tensor([len(k) for k in given.k], dtype=torch.int32)
    if layout in ("bshd", "bhsd"):
        k, v = _padded(given.k), _padded(given.v)
        if layout == "bhsd":
            k, v = k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()
        return k, v, {"seq_lens": lengths}
    table = page_table(given)
    hnd = layout == "HND"
    k, v = paged(given.k, table, hnd=hnd), paged(given.v, table, hnd=hnd)
    return k, v, {"seq_lens": lengths, "block_table": table, "kv_layout": layout[:3]}


def _with_tail(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([*rows, full_like_rows(rows[0], 3)])


def full_like_rows(like: torch.Tensor, rows: int) -> torch.Tensor:
    """Rows that must never be read: NaN, or the nearest thing that int8 has."""
    poison = torch.full((rows, *like.shape[1:]), NAN)
    return (poison.nan_to_num(nan=-77.0) if like.dtype == torch.int8 else poison).to(like.dtype)


def _padded(rows: list[torch.Tensor], extra: int = 2) -> torch.Tensor:
    longest = max(len(r) for r in rows) + extra
    return torch.stack([torch.cat([r, full_like_rows(r, longest - len(r))]) for r in rows])


def starts(rows: list[torch.Tensor]) -> torch.Tensor:
    """cu_seqlens int32."""
    return torch.tensor([0, *torch.tensor([len(r) for r in rows]).cumsum(0).tolist()], dtype=torch.int32)


def page_table(given: Scene) -> torch.Tensor:
    """Shuffled pages; the tails of the table are garbage."""
    width = math.ceil(given.longest[1] / PAGE) + 2
    count = sum(math.ceil(len(k) / PAGE) for k in given.k)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(5)).tolist()
    table = torch.full((len(given.k), width), -1, dtype=torch.int32)
    table[:, -1] = 2**31 - 1
    for b, k in enumerate(given.k):
        for slot in range(math.ceil(len(k) / PAGE)):
            table[b, slot] = order.pop()
    return table


def paged(rows: list[torch.Tensor], table: torch.Tensor, *, hnd: bool) -> torch.Tensor:
    """[pages, page, H, D] or [pages, H, page, D]; one page is used by nobody."""
    pages = sum(math.ceil(len(r) / PAGE) for r in rows) + 1
    cache = full_like_rows(rows[0], pages * PAGE).reshape(pages, PAGE, *rows[0].shape[1:])
    for b, sequence in enumerate(rows):
        for position, row in enumerate(sequence):
            cache[int(table[b, position // PAGE]), position % PAGE] = row
    return cache.transpose(1, 2).contiguous() if hnd else cache


def results(call: Call) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Run, and give (out [sq, Hq, Dv], lse [Hq, sq]) per sequence."""
    run(call)
    return read_back(call, call.out)


def read_back(call: Call, rows: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The rows of `rows` (laid out as q) and of call.lse, per sequence."""
    assert call.lse is not None
    if call.cu_seqlens_q is not None:
        bounds = call.cu_seqlens_q.tolist()
        return [(rows[a:b], call.lse[:, a:b]) for a, b in pairwise(bounds)]
    dense = rows.transpose(1, 2) if call.layout == "bhsd" else rows
    return [(dense[b], call.lse[b]) for b in range(dense.shape[0])]
