"""Quantised q, K and V: every granularity, format and layout, against the oracle on values dequantised by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from attn_backends.backends.eager.adapter import run
from attn_backends.host.append_kv import append_kv
from tests.backends.eager_calls import LAYOUTS, NAN, PAGE, Scene, call_of, full_like_rows, page_table, results, scene
from tests.backends.eager_oracle import Rules, attention

FORMATS = {
    "scaled-fp8-e4m3": torch.float8_e4m3fn,
    "scaled-fp8-e5m2": torch.float8_e5m2,
    "scaled-int8": torch.int8,
}
GRANULARITIES = ("per_tensor", "per_tensor-1", "per_head", "per_head-batch", "per_channel", "per_token_head", "block")
BLOCK = 3
HEADS = (4, 2)
WIDTH = (8, 6)


def lengths(layout: str) -> tuple[list[int], list[int]]:
    return ([4, 0, 2], [7, 3, 5]) if layout in ("thd", "NHD-packed") else ([3, 3, 3], [7, 0, 5])


def quantise(rows: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    return [(row * 20).round().clamp(-120, 120).to(dtype) for row in rows]


def factors(granularity: str, rows: list[torch.Tensor], width: int) -> list[np.ndarray[Any, Any]]:
    """A positive factor for every [token, head, column] of every sequence, constant where the granularity says so."""

    def factor(b: int, s: int, h: int, d: int) -> float:
        seen = {
            "per_tensor": (), "per_tensor-1": (), "per_head": (h,), "per_head-batch": (b, h), "per_channel": (h, d),
            "per_token_head": (b, s, h), "block": (b, h, s // BLOCK),
        }[granularity]  # fmt: skip
        return 2.0 ** -((sum((i + 3) * x for i, x in enumerate(seen)) % 4) + 4)

    heads = rows[0].shape[1]
    return [
        np.array([[[factor(b, s, h, d) for d in range(width)] for h in range(heads)] for s in range(len(row))]).reshape(
            len(row), heads, width
        )
        for b, row in enumerate(rows)
    ]


def descale_of(granularity: str, per_row: list[np.ndarray[Any, Any]], layout: str, table: Any, longest: int) -> Any:
    """The same factors as one tensor of the contract's shape; NaN where no token lies."""
    b, heads = len(per_row), per_row[0].shape[1]
    some = next(row for row in per_row if len(row))
    shapes: dict[str, Any] = {
        "per_tensor": lambda: torch.tensor(some[0, 0, 0]),
        "per_tensor-1": lambda: torch.tensor([some[0, 0, 0]]),
        "per_head": lambda: torch.tensor(some[0, :, 0]),
        "per_head-batch": lambda: torch.tensor(
            [row[0, :, 0].tolist() if len(row) else [NAN] * heads for row in per_row]
        ),
        "per_channel": lambda: torch.tensor(some[0]),
        "per_token_head": lambda: by_token(per_row, layout, table, longest),
    }
    if granularity != "block":
        return shapes[granularity]().float()
    blocks = torch.full((b, heads, math.ceil(longest / BLOCK)), NAN)
    for index, row in enumerate(per_row):
        for s in range(len(row)):
            blocks[index, :, s // BLOCK] = torch.tensor(row[s, :, 0])
    return blocks


def by_token(per_row: list[np.ndarray[Any, Any]], layout: str, table: Any, longest: int) -> torch.Tensor:
    rows = [torch.tensor(row[:, :, 0]).float() for row in per_row]
    if layout == "thd":
        return torch.cat([*rows, full_like_rows(rows[0], 3)])
    if table is None:
        return torch.stack([torch.cat([row, full_like_rows(row, longest + 2 - len(row))]) for row in rows])
    pool = torch.full((sum(math.ceil(len(row) / PAGE) for row in rows) + 1, PAGE, rows[0].shape[1]), NAN)
    for b, row in enumerate(rows):
        for s in range(len(row)):
            pool[int(table[b, s // PAGE]), s % PAGE] = row[s]
    return pool.transpose(1, 2).contiguous() if layout == "HND" else pool


def granularity_name(granularity: str) -> str:
    return granularity.split("-", maxsplit=1)[0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("stored", FORMATS)
def test_k_and_v_are_multiplied_by_their_descales(stored: str, granularity: str, layout: str) -> None:
    """K by one granularity and V by the next; poison in unused cells and unused scales is never read."""
    seq_q, seq_k = lengths(layout)
    given = scene(seq_q, seq_k, heads=HEADS, width=WIDTH)
    given = Scene(q=given.q, k=quantise(given.k, FORMATS[stored]), v=quantise(given.v, FORMATS[stored]))
    paged = layout in ("NHD", "HND", "NHD-packed")
    table = page_table(given) if paged else None
    names = granularity, GRANULARITIES[(GRANULARITIES.index(granularity) + 1) % len(GRANULARITIES)]
    args: dict[str, Any] = {"scale_block": BLOCK, "causal": True, "k_format": stored, "v_format": stored}
    wide = []
    for name, rows, chosen in (("k", given.k, names[0]), ("v", given.v, names[1])):
        by_row = factors(chosen, rows, rows[0].shape[-1])
        args[f"{name}_descale"] = descale_of(chosen, by_row, layout, table, given.longest[1])
        args[f"{name}_granularity"] = granularity_name(chosen)
        wide.append([row.double().numpy() * factor for row, factor in zip(rows, by_row, strict=True)])
    call = call_of(given, layout, **args)
    for b, (out, lse) in enumerate(results(call)):
        q = given.q[b].double().numpy()
        rules = Rules(scale=call.softmax_scale, causal=True)
        want, want_lse = attention(q, wide[0][b], wide[1][b], rules)
        torch.testing.assert_close(out.double(), torch.from_numpy(want), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(lse.double(), torch.from_numpy(want_lse), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "thd", "NHD-packed"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("by", ["query-heads", "kv-heads"])
def test_q_is_multiplied_by_its_descale(by: str, granularity: str, layout: str) -> None:
    """q is scaled per query head, or per KV head and then for the whole group; the output is bfloat16."""
    seq_q, seq_k = lengths(layout)
    given = scene(seq_q, seq_k, heads=HEADS, width=WIDTH)
    given = Scene(q=quantise(given.q, torch.float8_e4m3fn), k=given.k, v=given.v)
    heads = HEADS[0] if by == "query-heads" else HEADS[1]
    by_row = factors(granularity, [row[:, :heads] for row in given.q], WIDTH[0])
    packed = layout in ("thd", "NHD-packed")
    descale = descale_of(granularity, by_row, "thd" if packed else "bshd", None, given.longest[0])
    call = call_of(
        given, layout, q_format="scaled-fp8-e4m3", q_descale=descale, q_granularity=granularity_name(granularity),
        scale_block=BLOCK,
    )  # fmt: skip
    call.out = call.out.to(torch.bfloat16)
    for b, (out, lse) in enumerate(results(call)):
        q = given.q[b].double().numpy() * by_row[b].repeat(HEADS[0] // heads, axis=1)
        k, v = given.k[b].double().numpy(), given.v[b].double().numpy()
        want, want_lse = attention(q, k, v, Rules(scale=call.softmax_scale))
        assert out.dtype == torch.bfloat16
        torch.testing.assert_close(out.double(), torch.from_numpy(want), atol=2e-2, rtol=2e-2)
        torch.testing.assert_close(lse.double(), torch.from_numpy(want_lse), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kv_layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
def test_what_append_kv_stores_is_what_the_call_reads(dtype: torch.dtype, kv_layout: str) -> None:
    """Tokens appended with computed scales are read back within the rounding of their format."""
    given = scene([2], [10], heads=HEADS, width=(8, 8))
    shape = (3, PAGE, 2, 8) if kv_layout == "NHD" else (3, 2, PAGE, 8)
    caches = [torch.zeros(shape, dtype=dtype) for _ in "kv"]
    scales = [torch.full(shape[:3], NAN) for _ in "kv"]
    table = torch.tensor([[2, 0, 1]], dtype=torch.int32)
    slots = torch.tensor([int(table[0, p // PAGE]) * PAGE + p % PAGE for p in range(10)])
    append_kv(given.k[0], given.v[0], *caches, slots, kv_layout=kv_layout, k_descale=scales[0], v_descale=scales[1])
    call = call_of(
        given, k_descale=scales[0], v_descale=scales[1], k_granularity="per_token_head",
        v_granularity="per_token_head", kv_layout=kv_layout, block_table=table,
    )  # fmt: skip
    call.k, call.v = caches
    call.seq_lens = torch.tensor([10], dtype=torch.int32)
    run(call)
    exact = call_of(given)
    run(exact)
    step = {torch.int8: 0.01, torch.float8_e4m3fn: 0.08, torch.float8_e5m2: 0.16}[dtype]
    torch.testing.assert_close(call.out, exact.out, atol=step, rtol=step)


def test_a_descale_without_its_granularity_is_never_dropped() -> None:
    """A call that the host built wrongly fails loudly instead of ignoring the scale."""
    call = call_of(scene([1], [2]), k_descale=torch.tensor([0.5, 0.25]))
    with pytest.raises(ValueError, match="none descale"):
        run(call)
