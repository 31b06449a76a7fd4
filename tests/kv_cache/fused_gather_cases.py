"""What `gather_kv`'s kernel is compared with torch on, bit for bit.

    TRITON_INTERPRET=1 python -m tests.kv_cache.fused_gather_cases      prints JSON: case -> numbers that differ

Entries of the table behind a sequence's end lie outside the pool. No bfloat16 on a CPU: Triton's interpreter is silently
wrong there.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from attn_backends.kv_cache import fused_gather, moving

PAGES, PAGE, COLUMNS, HEADS, WIDTHS = 40, 4, 12, 3, (16, 24)
LENGTHS = (37, 0, 5, 44)
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "int8": torch.int8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """k, v: (format or dtype, granularity); dtype: of the results, None = the default."""

    k: tuple[str, str]
    v: tuple[str, str]
    layout: str = "NHD"
    dtype: str | None = None
    lengths: tuple[int, ...] = LENGTHS


CASES: dict[str, Case] = {
    "dense": Case(k=("float16", "none"), v=("float32", "none")),
    "dense, heads first, cast": Case(k=("float16", "none"), v=("float16", "none"), layout="HND", dtype="float32"),
    "V alone": Case(k=("float16", "none"), v=("e4m3", "per_token_head"), dtype="float16"),
    "nothing": Case(k=("float16", "none"), v=("float16", "none"), lengths=(0, 0)),
} | {
    f"{form} {granularity}, {layout}": Case(k=(form, granularity), v=(form, granularity), layout=layout, dtype=dtype)
    for form in FORMATS
    for granularity, layout, dtype in (
        ("per_tensor", "NHD", "float16"), ("per_head", "HND", "float32"), ("per_sequence", "NHD", "float32"),
        ("per_channel", "HND", "float16"), ("per_token_head", "HND", "float32"), ("per_token_head", "NHD", "float16"),
    )
}  # fmt: skip
BFLOAT16 = {
    "bfloat16": Case(k=("bfloat16", "none"), v=("bfloat16", "none")),
    "e4m3 into bfloat16": Case(k=("e4m3", "per_head"), v=("e4m3", "per_token_head")),
    "int8 into bfloat16": Case(k=("int8", "per_channel"), v=("int8", "per_token_head")),
}


def differences(case: Case, device: str) -> dict[str, float]:
    """Numbers of k, v and the starts that differ between the kernel's answer and torch's."""
    arguments = _arguments(case, device)
    with mock.patch.object(moving, "_kernel", return_value=None):
        right = moving.gather_kv(**arguments)
    sources = []
    for name in "kv":
        scaling = (arguments[f"{name}_descale"], arguments[f"{name}_granularity"], None)
        one = moving._scaled(
            name, arguments[f"{name}_cache"], scaling, case.layout, len(case.lengths), arguments["dtype"]
        )
        sources.append(one.source(fused_gather))
    got = fused_gather.gather(
        *sources, arguments["block_table"], right[2], total=sum(case.lengths), longest=max(case.lengths)
    )
    return {
        name: float((one.float() != two.float()).sum()) + float(one.dtype != two.dtype)
        for name, one, two in zip("kv", got, right, strict=False)
    }


def _arguments(case: Case, device: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(PAGES, generator=generator).to(torch.int32)
    table = torch.full((len(case.lengths), COLUMNS), 2**31 - 1, dtype=torch.int32)
    start = 0
    for row, length in enumerate(case.lengths):
        count = -(-length // PAGE)
        table[row, :count] = order[start : start + count]
        start += count
    cells = (PAGE, HEADS) if case.layout == "NHD" else (HEADS, PAGE)
    given: dict[str, Any] = {
        "block_table": table.to(device), "seq_lens": torch.tensor(case.lengths, dtype=torch.int32, device=device),
        "kv_layout": case.layout, "dtype": None if case.dtype is None else getattr(torch, case.dtype),
    }  # fmt: skip
    for name, (form, granularity), width in (("k", case.k, WIDTHS[0]), ("v", case.v, WIDTHS[1])):
        drawn = torch.randn(PAGES, *cells, width, generator=generator) * 20
        stored = FORMATS.get(form) or getattr(torch, form)
        shapes = {
            "per_tensor": (1,), "per_head": (HEADS,), "per_sequence": (len(case.lengths), HEADS), "per_channel": (HEADS, width),
            "per_token_head": (PAGES, *cells),
        }  # fmt: skip
        dense = granularity == "none"
        given[f"{name}_cache"] = drawn.clamp(-120, 120).to(stored).to(device)
        given[f"{name}_descale"] = (
            None if dense else (torch.rand(shapes[granularity], generator=generator) + 0.1).to(device)
        )
        named = "per_head" if granularity == "per_sequence" else granularity
        given[f"{name}_granularity"] = None if dense else named
    return given


if __name__ == "__main__":
    json.dump({name: differences(case, "cpu") for name, case in CASES.items()}, sys.stdout)
