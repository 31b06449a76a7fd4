"""Launching the forward kernel for one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from attn_backends.backends.triton_tiled.block_lists import NO_LISTS, query_lists
from attn_backends.backends.triton_tiled.configs import Config
from attn_backends.backends.triton_tiled.forward import FORWARD
from attn_backends.backends.triton_tiled.operands import Operands, row_strides, rows_like, strides_of
from attn_backends.backends.triton_tiled.sources import Sources, aligned, leaves_32_bits, sources_of

if TYPE_CHECKING:
    from attn_backends.call import Call


def launch_forward(
    call: Call,
    operands: Operands,
    lse: torch.Tensor | None,
    config: Config | None = None,
    visits: torch.Tensor | None = None,
    tops: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Write call.out and `lse`, float32 [B, H, S] or [H, T], where given.

    tops: None, or room for each row's maximum and the rest of its LSE, shaped as `lse`
    visits: None, or int32 with room for one number per program: the key tiles it visited.
    """
    sizes = operands.sizes
    sources = sources_of("forward", call, operands, config)
    config = sources.config
    out_strides = strides_of(call.out, call.layout)
    options = sources.options
    options["WIDE"] = options["WIDE"] or leaves_32_bits(config.rows, out_strides)
    options["ALIGNED"] = options["ALIGNED"] and aligned(call.out, out_strides)
    lists = NO_LISTS
    if call.block_mask is not None:
        lists = query_lists(call.block_mask, config.rows, config.columns, sizes.longest_q, sizes.longest_k)
    tiles = -(-sizes.longest_q // config.rows)
    scale, softcap, inner_scale = operands.scaling
    negate = scale < 0.0 and not config.portable
    if lse is None and config.portable:
        lse = rows_like(call)
    way, bounded = softcap_way(call, operands, sources)
    FORWARD.member(config.portable, options["ALIGNED"])[(tiles * sizes.heads * operands.batch,)](
        *sources.tensors, call.out, lse, stand_in(call.sinks, lse, sources), stand_in(operands.slopes, lse, sources), *masks_for(operands, sources), lists.tiles, lists.counts, visits,
        *(tops or (None, None)),
        *lengths_for(operands, lse, sources),
        *sources.strides,
        *sources.steps(out_strides, rows_or_none(lse), rows_or_none(tops and tops[0])),
        *sources.steps(operands.slope_strides, lists.strides),
        sizes.heads, sizes.heads // sizes.kv_heads, sizes.longest_q, sizes.longest_k, sizes.width, sizes.width_v,
        -scale if negate else scale, softcap, -inner_scale if negate else inner_scale, *operands.band, operands.present, *operands.dropout,
        SINKS=config.portable or call.sinks is not None, NEGATE_Q=negate, STORE_LSE=lse is not None, STORE_TOPS=tops is not None, COUNTED=visits is not None, WAY=way, BOUNDED=bounded, LEAN=LEAN,
        EVEN_K=fills_tiles(operands, "k", config), GUARD_V=guarded(operands, sources), **options,
    )  # fmt: skip


LEAN = False  # whether tiles that an edge cuts scale their scores behind the maximum, as whole ones do
SOFTCAP_WAY = (0, False)  # how the tuned kernel caps scores, and whether their bound takes their maximum's place


def softcap_way(call: Call, operands: Operands, sources: Sources) -> tuple[int, bool]:
    """`SOFTCAP_WAY` where the call allows it: a cap near those in use, 16 bits; weights below 2^-24 only in bfloat16."""
    flags = operands.flags
    _scale, cap, inner_scale = operands.scaling
    if not flags["SOFTCAP"] or sources.config.portable or not sources.options["FAST_TANH"] or flags["BIAS"]:
        return 0, False
    if not (1.0 <= cap <= 50.0 and 1e-6 <= abs(inner_scale) <= 1e3):
        return 0, False
    way, bounded = SOFTCAP_WAY
    return way, bounded and call.q.dtype == torch.bfloat16 and not flags["ALIBI"]


def rows_or_none(rows: torch.Tensor | None) -> tuple[int, int, int]:
    """Strides (batch, head, token) of an LSE-like tensor; of none 0."""
    return (0, 0, 0) if rows is None else row_strides(rows)


def masks_for(operands: Operands, sources: Sources) -> tuple[Any, ...]:
    """`operands.masks`, strides as the kernel takes them."""
    mask, mask_strides, blocks, block_strides, inner, inner_strides, sizes = operands.masks
    steps = sources.steps(mask_strides, block_strides, inner_strides, sizes)
    return mask, steps[0], blocks, steps[1], stand_in(inner, blocks, sources), steps[2], steps[3]


def lengths_for(operands: Operands, rows: torch.Tensor | None, sources: Sources) -> tuple[torch.Tensor | None, ...]:
    """`operands.lengths`, for a portable kernel without gaps; rows: float32."""
    if not sources.config.portable or rows is None:
        return operands.lengths
    unread = rows.view(torch.int32)
    return tuple(unread if tensor is None else tensor for tensor in operands.lengths)


def stand_in(tensor: torch.Tensor | None, unread: torch.Tensor | None, sources: Sources) -> torch.Tensor | None:
    """The tensor; for a portable kernel, which asks `present` before it reads, some other where there is none."""
    return unread if tensor is None and sources.config.portable else tensor


def fills_tiles(operands: Operands, side: str, config: Config) -> bool:
    """Whether every sequence is known to end with a whole tile of queries ("q") or keys ("k").

    A portable kernel does not want to know.
    """
    if config.portable:
        return False
    size = config.rows if side == "q" else config.columns
    packed = operands.packed[0 if side == "q" else 1]
    length = operands.sizes.longest_q if side == "q" else operands.sizes.longest_k
    return length % size == 0 and not packed and not (side == "k" and operands.flags["LENGTHS"])


def guarded(operands: Operands, sources: Sources) -> bool:
    """Whether a cut tile may hold values that no row sees and that its load did not read as 0."""
    flags = operands.flags
    return operands.masked or (sources.tma and (flags["PACKED_K"] or flags["LENGTHS"]))
