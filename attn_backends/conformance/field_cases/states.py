"""Cases of `merge_states` and `append_kv`: one number per row or per page cell."""

from __future__ import annotations

from typing import Any

import torch

import attn_backends
from attn_backends.conformance.field_cases.calling import Place, arguments
from attn_backends.conformance.field_cases.comparing import compare, tolerance
from attn_backends.conformance.field_cases.outcome import Difference
from attn_backends.conformance.field_cases.reading import Case
from attn_backends.conformance.field_cases.rigs import shape_of
from attn_backends.conformance.field_cases.storage import FORMATS, filled

_WIDTH = 64


def differences_of_merge(case: Case, place: Place) -> list[Difference]:
    """Merge a with b, then the result with c where the case has one."""
    out, lse = _state(case, "a", place)
    for part in ("b", "c"):
        if f"out_{part}" in case.table:
            out, lse = attn_backends.merge_states(out, lse, *_state(case, part, place))
    if case.get("exact"):
        rounded = torch.tensor(case.get("expect"), dtype=place.torch_dtype).tolist()
        logs = torch.tensor(case.get("expect_lse"), dtype=torch.float32).tolist()
        return [*compare("expect", out[0, :, 0], rounded, 0.0), *compare("expect_lse", lse[0, 0], logs, 0.0)]
    tol = tolerance(case.get("atol", 2e-5), place.dtype)
    found = compare("expect", out[0, :, 0], case.get("expect"), tol) if "expect" in case.table else []
    if "expect_lse" in case.table:
        found += compare("expect_lse", lse[0, 0], case.get("expect_lse"), tol)
    for row in case.get("exact_zero_rows", ()):
        found += compare(f"exact zeros in row {row}", out[0, row, 0], [0.0] * _WIDTH, 0.0)
    return found


def _state(case: Case, part: str, place: Place) -> tuple[torch.Tensor, torch.Tensor]:
    """out [1, rows, 1, 64] and lse [1, 1, rows]."""
    out = torch.tensor(case.get(f"out_{part}"), dtype=place.torch_dtype, device=place.device)
    lse = torch.tensor(case.get(f"lse_{part}"), dtype=torch.float32, device=place.device)
    return out.view(1, -1, 1, 1).repeat(1, 1, 1, _WIDTH), lse.view(1, 1, -1)


def differences_of_append(case: Case, place: Place) -> list[Difference]:
    """Append the new tokens and compare every cell of head 0."""
    heads, width = shape_of(case).kv_heads, shape_of(case).head_dim
    layout = case.get("kv_layout", "NHD")
    rows = torch.tensor(case.get("rows"), dtype=torch.float64, device=place.device).view(-1, 1, 1)
    k = rows.repeat(1, heads, width)
    k_cache, v_cache = (_cache(case, place, name) for name in "kv")
    slots = torch.tensor(case.get("slots"), dtype=torch.int64, device=place.device)
    dtype = place.torch_dtype
    append_kv = attn_backends.append_kv
    append_kv(k.to(dtype), (10 * k).to(dtype), k_cache, v_cache, slots, kv_layout=layout, **_scales(case, place))
    tol = tolerance(case.get("atol", 2e-5), place.dtype)
    found: list[Difference] = []
    for name, cache in (("k", k_cache), ("v", v_cache)):
        cells = cache[:, 0] if layout == "HND" else cache[:, :, 0]
        if f"expect_{name}" in case.table:
            found += compare(f"expect_{name}", cells, case.get(f"expect_{name}"), tol)
    return found


def _cache(case: Case, place: Place, name: str) -> torch.Tensor:
    """A cache of one number, [pages, page_size, heads, head_dim] or, for HND, heads before slots."""
    cells = (case.get("page_size"), shape_of(case).kv_heads)
    pages, width = case.get("num_pages"), shape_of(case).head_dim
    first, second = reversed(cells) if case.get("kv_layout") == "HND" else cells
    dtype = FORMATS.get(case.get(f"{name}_format", ""), place.torch_dtype)
    return filled((pages, first, second, width), case.get("fill", 0.0), dtype).to(place.device)


def _scales(case: Case, place: Place) -> dict[str, Any]:
    names = ("k_descale", "v_descale", "k_granularity", "v_granularity")
    return {name: value for name, value in arguments(case, place).items() if name in names}
