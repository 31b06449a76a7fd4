"""Wrong `merge_states` and `append_kv`, told from the right ones by the suite's checks of the host's helpers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import attn_backends
from attn_backends.conformance.checks.host_side import HOST_CHECKS
from attn_backends.conformance.mutants.plugins.lie import NOTHING, Lie, Told, lie

Pair = tuple[Tensor, Tensor]


def told(helper: Callable[..., Any], clause: str) -> Told:
    """What the checks of a clause say of a helper."""
    for check in HOST_CHECKS.values():
        finding = check.run(helper) if clause in check.clauses else None
        if finding is not None and not finding.ok:
            return Told(word="FAIL", by=check.name, message=finding.message)
    return NOTHING


def _merged_in_base_two(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Pair:
    out, lse = attn_backends.merge_states(out_a, lse_a * math.log(2.0), out_b, lse_b * math.log(2.0))
    return out, lse / math.log(2.0)


def _empty_state_times_zero(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Pair:
    lse = torch.logaddexp(lse_a, lse_b)
    weight_a, weight_b = (torch.exp(x - lse).transpose(1, 2).unsqueeze(-1) for x in (lse_a, lse_b))
    return weight_a * out_a + weight_b * out_b, lse


def _size(cache: Tensor, given: dict[str, Any]) -> int:
    """Cells of a page."""
    return cache.shape[2 if given.get("kv_layout") == "HND" else 1]


def _slot_from_the_end(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, **given: Any) -> None:
    taken = set(slots.tolist())
    free = next(cell for cell in reversed(range(k_cache.shape[0] * _size(k_cache, given))) if cell not in taken)
    attn_backends.append_kv(k, v, k_cache, v_cache, torch.where(slots < 0, free, slots), **given)


def _longer_pages(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, **given: Any) -> None:
    cells = k_cache.shape[0] * _size(k_cache, given)
    moved = torch.where(slots < 0, slots, (slots + slots // _size(k_cache, given)) % cells)
    attn_backends.append_kv(k, v, k_cache, v_cache, moved, **given)


def _codes_wrap(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, **given: Any) -> None:
    scale = given.get("k_descale")
    if k_cache.dtype == torch.int8 and isinstance(scale, float):
        k = ((torch.floor(k / scale + 0.5).to(torch.int64) + 128) % 256 - 128).to(k.dtype) * scale
    attn_backends.append_kv(k, v, k_cache, v_cache, slots, **given)


def _one_scale_for_all_heads(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, **given: Any
) -> None:
    attn_backends.append_kv(k, v, k_cache, v_cache, slots, **given)
    if given.get("k_granularity") == "per_token_head":
        scale = given["k_descale"]
        scale.copy_(scale.amax(dim=-1, keepdim=True).expand_as(scale))


@lie("MERGE-1", "FAIL")
def merged_in_base_two() -> Told:
    """LSEs are taken for logarithms in base 2."""
    return told(_merged_in_base_two, "MERGE-1")


@lie("MERGE-2", "FAIL")
def empty_state_times_zero() -> Told:
    """The output of an empty state is multiplied by its weight 0, NaN or not."""
    return told(_empty_state_times_zero, "MERGE-2")


@lie("APPEND-1", "FAIL")
def skipped_token_written_all_the_same() -> Told:
    """Slot -1 is a place like any other, near the end of the pool."""
    return told(_slot_from_the_end, "APPEND-1")


@lie("APPEND-1", "FAIL")
def pages_one_cell_longer() -> Told:
    """Each page is taken to have one cell more than it has."""
    return told(_longer_pages, "APPEND-1")


@lie("APPEND-2", "FAIL")
def codes_wrap() -> Told:
    """x / descale goes to int8 without a clamp, and half is rounded up."""
    return told(_codes_wrap, "APPEND-2")


@lie("APPEND-3", "FAIL")
def one_scale_for_all_heads() -> Told:
    """The scale of a token is that of its largest head."""
    return told(_one_scale_for_all_heads, "APPEND-3")


LIES: tuple[Lie, ...] = (
    merged_in_base_two, empty_state_times_zero, skipped_token_written_all_the_same, pages_one_cell_longer, codes_wrap,
    one_scale_for_all_heads,
)  # fmt: skip
