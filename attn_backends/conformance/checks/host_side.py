"""Checks of the host's own helpers, `merge_states` and `append_kv`; no backend is asked. For the suite's self-test and tests.

Each takes the helper as an argument, so that a wrong one can be shown to fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import attn_backends
from attn_backends.conformance.checks.check import RIGHT, Finding
from attn_backends.conformance.checks.comparing import same_bits
from attn_backends.quantization import RANGES

Helper = Callable[..., Any]
HEADS, WIDTH, PAGE, PAGES = 2, 8, 4, 3
SLOTS = (9, -1, 2, 0, 11)  # one is skipped; first, last and a middle cell of a page


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCheck:
    """One promise of a helper; `helper` is its name in the public API."""

    name: str
    helper: str
    clauses: tuple[str, ...]
    prove: Callable[[Helper], Finding]

    def run(self, helper: Helper | None = None) -> Finding:
        """Try the public helper, or another one in its place."""
        return self.prove(getattr(attn_backends, self.helper) if helper is None else helper)


def _drawn(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def _state(scores: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [1, S, H, W], lse [1, H, S]) of scores [H, S, K] over v [H, K, W]."""
    out = torch.softmax(scores, dim=-1) @ v
    return out.transpose(0, 1).unsqueeze(0), torch.logsumexp(scores, dim=-1).unsqueeze(0)


def _union(merge: Helper) -> Finding:
    """Two disjoint sets of keys, one far heavier in some rows."""
    scores, v = 3.0 * _drawn(HEADS, 5, 12), _drawn(HEADS, 12, WIDTH, seed=1)
    scores[:, 2, :4] += 80.0
    parts = [_state(scores[..., part], v[:, part]) for part in (slice(0, 4), slice(4, 12))]
    out, lse = merge(*parts[0], *parts[1])
    want, log = _state(scores.double(), v.double())
    right = bool(((out - want).abs() < 1e-5).all()) and bool(((lse - log).abs() < 1e-4).all())
    return RIGHT if right else Finding(ok=False, message="merging two parts is not the whole")


def _empty(merge: Helper) -> Finding:
    """An empty state holds anything and changes no bit; two of them make another."""
    out, lse = _state(_drawn(HEADS, 5, 4), _drawn(HEADS, 4, WIDTH, seed=1))
    nothing, junk = torch.full_like(lse, -math.inf), torch.full_like(out, math.nan)
    for given in ((out, lse, junk, nothing), (junk, nothing, out, lse)):
        merged = merge(*given)
        if not (same_bits(merged[0], out) and same_bits(merged[1], lse)):
            return Finding(ok=False, message="merging with an empty state changes the other one")
    both = merge(junk, nothing, junk, nothing)
    right = bool((both[0] == 0).all()) and bool((both[1] == -math.inf).all())
    return RIGHT if right else Finding(ok=False, message="two empty states make something else than an empty one")


def _caches(dtype: torch.dtype, kv_layout: str, fill: float) -> list[torch.Tensor]:
    sizes = (PAGES, PAGE, HEADS, WIDTH) if kv_layout == "NHD" else (PAGES, HEADS, PAGE, WIDTH)
    return [torch.full(sizes, fill).to(dtype) for _ in "kv"]


def _cells(cache: torch.Tensor, kv_layout: str) -> torch.Tensor:
    """A cache as [slots, H, ...]."""
    ordered = cache if kv_layout == "NHD" else cache.transpose(1, 2)
    return ordered.reshape(PAGES * PAGE, *ordered.shape[2:])


def _slots(append: Helper) -> Finding:
    """Every token in its cell, nothing anywhere else."""
    k, v = _drawn(len(SLOTS), HEADS, WIDTH), _drawn(len(SLOTS), HEADS, WIDTH, seed=1)
    for kv_layout in ("NHD", "HND"):
        caches = _caches(torch.float32, kv_layout, 7.0)
        append(k, v, *caches, torch.tensor(SLOTS), kv_layout=kv_layout)
        for name, tensor, cache in zip("kv", (k, v), caches, strict=True):
            want = torch.full((PAGES * PAGE, HEADS, WIDTH), 7.0)
            for token, slot in enumerate(SLOTS):
                if slot >= 0:
                    want[slot] = tensor[token]
            if not same_bits(_cells(cache, kv_layout).contiguous(), want):
                return Finding(
                    ok=False, message=f"{kv_layout}: {name} is not where slot_mapping says, or elsewhere too"
                )
    return RIGHT


def _codes(append: Helper) -> Finding:
    """clamp(x / descale), to nearest even, saturated at the range."""
    descale = 0.5
    k = torch.tensor([0.25, 0.75, -0.75, 1.25, 1e6, -1e6, 3.0, -0.25]).expand(len(SLOTS), HEADS, WIDTH)
    for dtype in (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2):
        low, high = RANGES[str(dtype).removeprefix("torch.")]
        caches = _caches(dtype, "NHD", 0.0)
        append(k, k, *caches, torch.tensor(SLOTS), k_descale=descale, v_descale=descale)
        numbers = (k[0, 0] / descale).clamp(low, high)
        want = (numbers.round() if dtype == torch.int8 else numbers).to(dtype).float()
        got = _cells(caches[0], "NHD")[SLOTS[0], 1].float()
        if not bool((got == want).all()):
            return Finding(ok=False, message=f"{dtype}: stored {got.tolist()}, should be {want.tolist()}")
    return RIGHT


def _scales(append: Helper) -> Finding:
    """per_token_head writes the scales by which the codes read back."""
    k, v = 5.0 * _drawn(len(SLOTS), HEADS, WIDTH), _drawn(len(SLOTS), HEADS, WIDTH, seed=1)
    k[0, 1] = 0.0
    caches = _caches(torch.int8, "NHD", 0.0)
    scales = [torch.full((PAGES, PAGE, HEADS), -1.0) for _ in "kv"]
    append(
        k, v, *caches, torch.tensor(SLOTS), k_descale=scales[0], v_descale=scales[1], k_granularity="per_token_head",
        v_granularity="per_token_head",
    )  # fmt: skip
    used = [slot for slot in SLOTS if slot >= 0]
    for name, tensor, cache, scale in zip("kv", (k, v), caches, scales, strict=True):
        own = tensor[[token for token, slot in enumerate(SLOTS) if slot >= 0]]
        got, stored = _cells(scale, "NHD")[used], _cells(cache, "NHD")[used].float()
        want = torch.where(own.abs().amax(dim=-1) == 0, 1.0, own.abs().amax(dim=-1) / RANGES["int8"][1])
        near = bool(((got - want).abs() <= 1e-6 * want).all())
        back = (stored * got.unsqueeze(-1) - own).abs() <= 0.5001 * got.unsqueeze(-1)
        if not (near and bool(back.all())):
            return Finding(ok=False, message=f"{name}: scales {got.tolist()}, should be {want.tolist()}")
    untouched = [slot for slot in range(PAGES * PAGE) if slot not in used]
    kept = all(bool((_cells(scale, "NHD")[untouched] == -1.0).all()) for scale in scales)
    return RIGHT if kept else Finding(ok=False, message="scales of other cells were written")


HOST_CHECKS: dict[str, HostCheck] = {
    check.name: check
    for check in (
        HostCheck(name="merge_union", helper="merge_states", clauses=("MERGE-1",), prove=_union),
        HostCheck(name="merge_empty", helper="merge_states", clauses=("MERGE-2",), prove=_empty),
        HostCheck(name="append_slots", helper="append_kv", clauses=("APPEND-1",), prove=_slots),
        HostCheck(name="append_codes", helper="append_kv", clauses=("APPEND-2",), prove=_codes),
        HostCheck(name="append_scales", helper="append_kv", clauses=("APPEND-3",), prove=_scales),
    )
}
