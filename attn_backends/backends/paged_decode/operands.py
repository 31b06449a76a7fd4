"""A call as the kernels take it: one order of strides for every layout, limits clamped, features as flags.

Nothing here reads a tensor's contents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from attn_backends.call import Call

Strides = tuple[int, ...]


class Sizes(NamedTuple):
    """How large a call is; `group` query heads share a KV head, lengths are the longest, `total_q` is over all sequences."""

    batch: int
    kv_heads: int
    group: int
    longest_q: int
    longest_k: int
    width: int
    width_v: int
    num_pages: int
    page_size: int
    total_q: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """What both kernels and the choice of tiles are told.

    strides    q, k, v, out, lse, block table, descales of K and V, slopes
    scaling    (what turns products into scores, or scores / softcap; softcap, 1 where there is none)
    band       (left, right) clamped to the lengths; only those that `flags` turn on are read
    flags      the features as compile-time constants
    """

    sizes: Sizes
    strides: tuple[Strides, ...]
    scaling: tuple[float, float]
    band: tuple[int, int]
    flags: dict[str, Any]


def operands_of(call: Call) -> Operands:
    """Read a call on a paged cache. Raises ValueError for one that has none."""
    if call.block_table is None or call.seq_lens is None:
        raise ValueError("a call without a paged cache: the manifest over-claims")
    sizes = _sizes(call, call.block_table)
    right = _tighter(call.window_right, 0) if call.causal else call.window_right
    reach = sizes.longest_q + sizes.longest_k
    softcap = call.softcap if call.softcap is not None and call.softcap < _LARGEST else None
    return Operands(
        sizes=sizes,
        strides=_strides(call, call.block_table),
        scaling=_scaling(call.softmax_scale, softcap),
        band=(min(call.window_left, reach), min(right, reach)),
        flags={
            "PAGE_SIZE": sizes.page_size,
            "PACKED_Q": call.layout == "thd",
            "K_SCALE": _KIND[call.k_granularity],
            "V_SCALE": _KIND[call.v_granularity],
            "LEFT": call.window_left >= 0,
            "RIGHT": right >= 0,
            "BOTTOM_RIGHT": call.causal_alignment == "bottom_right",
            "SOFTCAP": softcap is not None,
            "ALIBI": call.alibi_slopes is not None,
            "SINKS": call.sinks is not None,
            "INVARIANT": call.batch_invariant,
            "STORE_LSE": call.lse is not None,
        },
    )


_KIND = {"none": "none", "per_tensor": "head", "per_head": "head", "per_channel": "channel", "per_token_head": "token"}
_LARGEST = 3.4028234663852886e38  # of float32
_SMALLEST = 1.1754943508222875e-38


def _scaling(scale: float, softcap: float | None) -> tuple[float, float]:
    """In log2 units where there is no softcap; a cap below float32's range is its least number."""
    if softcap is None:
        return scale * _LOG2E, 1.0
    cap = max(softcap, _SMALLEST)
    return max(-_LARGEST, min(scale / cap, _LARGEST)), cap


_LOG2E = 1.4426950408889634


def _sizes(call: Call, table: torch.Tensor) -> Sizes:
    pages, second, third, width = call.k.shape
    page_size, kv_heads = (second, third) if call.kv_layout == "NHD" else (third, second)
    batch, columns = table.shape
    if call.layout == "thd":
        total_q, heads, longest_q = call.q.shape[0], call.q.shape[1], call.max_seqlen_q
    else:
        longest_q, heads = call.q.shape[1:3] if call.layout == "bshd" else (call.q.shape[2], call.q.shape[1])
        total_q = batch * longest_q
    return Sizes(
        batch, kv_heads, heads // kv_heads, longest_q, columns * page_size if pages else 0, width, call.v.shape[-1], pages, page_size,
        total_q,
    )  # fmt: skip


def _strides(call: Call, table: torch.Tensor) -> tuple[Strides, ...]:
    lse: Strides = (0, 0, 0)
    if call.lse is not None:
        lse = call.lse.stride() if call.lse.dim() == 3 else (0, *call.lse.stride())
    slopes = call.alibi_slopes
    return (
        query_strides(call.q.stride(), call.layout), cache_strides(call.k.stride(), call.kv_layout),
        cache_strides(call.v.stride(), call.kv_layout), query_strides(call.out.stride(), call.layout), lse, table.stride(),
        _scale_strides(call.k_descale, call.k_granularity, call.kv_layout),
        _scale_strides(call.v_descale, call.v_granularity, call.kv_layout),
        (0, 0) if slopes is None else (0 if slopes.dim() == 1 else slopes.stride(0), slopes.stride(-1)),
    )  # fmt: skip


def query_strides(given: Sequence[int], layout: str) -> Strides:
    """(batch, head, token, width) of a tensor laid out as q; a packed one has no batch."""
    if layout == "bhsd":
        return tuple(given)
    return (given[0], given[2], given[1], given[3]) if layout == "bshd" else (0, given[1], given[0], given[2])


def cache_strides(given: Sequence[int], kv_layout: str) -> Strides:
    """(page, cell, head, ...) of a cache, or of the descales of its tokens."""
    return tuple(given) if kv_layout == "NHD" else (given[0], given[2], given[1], *given[3:])


def _scale_strides(descale: torch.Tensor | None, granularity: str, kv_layout: str) -> Strides:
    """(page, cell, head) per token, (0, head, column) per channel, else (batch, head, 0)."""
    if descale is None or granularity == "per_tensor":
        return 0, 0, 0
    if granularity == "per_token_head":
        return cache_strides(descale.stride(), kv_layout)
    if granularity == "per_channel":
        return 0, descale.stride(0), descale.stride(1)
    return 0 if descale.dim() == 1 else descale.stride(0), descale.stride(-1), 0


def _tighter(first: int, second: int) -> int:
    """The tighter of two right limits, -1 = unbounded."""
    return second if first < 0 else min(first, second)
