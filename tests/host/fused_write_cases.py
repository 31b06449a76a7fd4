"""What `append_kv`'s kernel is compared with torch on, bit for bit: a table of writes.

    TRITON_INTERPRET=1 python -m tests.host.fused_write_cases      prints JSON: case -> what differs

bfloat16 is for a GPU alone: Triton's interpreter is silently wrong there.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import torch

from attn_backends.host import append_kv as host
from attn_backends.host import fused_write

PAGES, PAGE = 4, 3
SLOTS = (7, -1, 0, 11, 4, 2)
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "int8": torch.int8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """k, v: (format, granularity) or (dtype, none); rows: their dtype; heads, widths; awkward: NaN, inf, zeros, ties."""

    k: tuple[str, str]
    v: tuple[str, str]
    rows: str = "float16"
    heads: int = 2
    widths: tuple[int, int] = (16, 24)
    layout: str = "NHD"
    strided: bool = False
    slots: tuple[int, ...] = SLOTS


_DENSE = ("float16", "none")
CASES: dict[str, Case] = {
    "dense": Case(k=_DENSE, v=_DENSE),
    "dense, heads first, strided": Case(k=_DENSE, v=_DENSE, layout="HND", strided=True),
    "float32 into float32": Case(k=("float32", "none"), v=("float32", "none"), rows="float32"),
    "float16 into float32": Case(k=("float32", "none"), v=_DENSE),
    "nothing is kept": Case(k=_DENSE, v=("int8", "per_token_head"), slots=(-1,) * 6),
    "many heads": Case(k=("int8", "per_token_head"), v=("e4m3", "per_head"), heads=70, widths=(128, 65)),
    "one head of 576": Case(k=("e4m3", "per_tensor"), v=("e4m3", "per_tensor"), heads=1, widths=(576, 512)),
    "V alone": Case(k=_DENSE, v=("e4m3", "per_token_head")),
} | {
    f"{form} {granularity}, {rows}, {layout}": Case(k=(form, granularity), v=(form, granularity), rows=rows, layout=layout)
    for form in FORMATS
    for granularity in ("per_tensor", "per_head", "per_channel", "per_token_head")
    for rows, layout in (("float16", "NHD"), ("float32", "HND"))
}  # fmt: skip
BFLOAT16 = {
    f"bfloat16, {form} {granularity}": Case(k=(form, granularity), v=(form, granularity), rows="bfloat16")
    for form in FORMATS
    for granularity in ("per_tensor", "per_token_head")
} | {"bfloat16, dense": Case(k=("bfloat16", "none"), v=("float32", "none"), rows="bfloat16")}


def differences(case: Case, device: str) -> dict[str, int]:
    """Bytes that differ between the kernel's caches and scales and torch's; NaN of either sign is one NaN."""
    found = []
    for fused in (True, False):
        arguments, tensors = _arguments(case, device)
        _write(arguments, fused)
        found.append(tensors)
    return {name: _differing(found[0][name], found[1][name]) for name in found[0]}


def _write(arguments: dict[str, Any], fused: bool) -> None:
    given = dict(arguments)
    slots = given["slots"]
    writes = [
        host._plan(name, given[name], given[f"{name}_cache"], given[f"{name}_descale"], (given[f"{name}_granularity"], None), given["layout"])
        for name in "kv"
    ]  # fmt: skip
    if not fused:
        for write in writes:
            write.store(slots)
        return
    targets = [
        fused_write.Target(rows=one.rows, cache=one.cache, descale=one.descale, granularity=one.granularity) for one in writes
    ]  # fmt: skip
    fused_write.write(*targets, slots)


def _arguments(case: Case, device: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    given: dict[str, Any] = {"slots": torch.tensor(case.slots, device=device), "layout": case.layout}
    tensors = {}
    for name, (form, granularity), width in (("k", case.k, case.widths[0]), ("v", case.v, case.widths[1])):
        rows = _rows(case, width, generator).to(getattr(torch, case.rows))
        if case.strided:
            rows = rows.transpose(0, 1).contiguous().transpose(0, 1)
        cells = (PAGE, case.heads) if case.layout == "NHD" else (case.heads, PAGE)
        cache = torch.ones(PAGES, *cells, width).to(FORMATS.get(form) or getattr(torch, form)).to(device)
        descale = _descale(granularity, case.heads, width, cells, generator)
        given |= {
            name: rows.to(device),
            f"{name}_cache": cache,
            f"{name}_granularity": None if granularity == "none" else granularity,
        }
        given[f"{name}_descale"] = None if descale is None else descale.to(device)
        tensors[f"{name} cache"] = cache
        if granularity == "per_token_head":
            tensors[f"{name} scales"] = given[f"{name}_descale"]
    return given, tensors


def _rows(case: Case, width: int, generator: torch.Generator) -> torch.Tensor:
    """[tokens, heads, width]: beside ordinary numbers a head of zeros, huge, tiny and unusable ones, and ties."""
    rows = torch.randn(len(case.slots), case.heads, width, generator=generator) * 5
    rows[0, 0] = 0.0
    rows[2, 0, :8] = torch.tensor([torch.inf, -torch.inf, torch.nan, 6e4, -6e4, 1e-7, -0.0, 448.0])
    rows[3, 0, :6] = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 127.5]) * 0.25
    rows[4, 0, :4] = torch.tensor([6e4, 1e-3, 0.0, -3e4])
    return rows


def _descale(
    granularity: str, heads: int, width: int, cells: tuple[int, int], generator: torch.Generator
) -> torch.Tensor | None:
    shapes: dict[str, tuple[int, ...]] = {
        "per_tensor": (1,), "per_head": (heads,), "per_channel": (heads, width), "per_token_head": (PAGES, *cells),
    }  # fmt: skip
    if granularity == "none":
        return None
    if granularity == "per_tensor":
        return torch.tensor([0.25])
    return torch.rand(shapes[granularity], generator=generator) + 0.01


def _differing(got: torch.Tensor, right: torch.Tensor) -> int:
    if got.dtype == torch.int8:
        return int((got != right).sum())
    got, right = got.float(), right.float()
    return int(
        ((got != right) & ~(got.isnan() & right.isnan())).sum()
        + (torch.signbit(got) != torch.signbit(right))[~got.isnan()].sum()
    )


def main() -> None:
    """Print every case's differences, from this machine's CPU."""
    json.dump({name: differences(case, "cpu") for name, case in CASES.items()}, sys.stdout)


if __name__ == "__main__":
    main()
