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
    capped = bounded(call, operands, config)
    if lse is None and config.portable:
        lse = rows_like(call)
    FORWARD.member(config.portable, options["ALIGNED"])[(tiles * sizes.heads * operands.batch,)](
        *sources.tensors, call.out, lse, stand_in(call.sinks, lse, sources), stand_in(operands.slopes, lse, sources), *masks_for(operands, sources), lists.tiles, lists.counts, visits,
        *(tops or (None, None)),
        *lengths_for(operands, lse, sources),
        *sources.strides,
        *sources.steps(out_strides, rows_or_none(lse), rows_or_none(tops and tops[0])),
        *sources.steps(operands.slope_strides, lists.strides),
        sizes.heads, sizes.heads // sizes.kv_heads, sizes.longest_q, sizes.longest_k, sizes.width, sizes.width_v,
        -scale if negate else scale, softcap, -inner_scale if negate else inner_scale, *operands.band, operands.present, *operands.dropout,
        SINKS=config.portable or call.sinks is not None, NEGATE_Q=negate, STORE_LSE=lse is not None, STORE_TOPS=tops is not None, COUNTED=visits is not None, BOUNDED=capped, CUBICS=config.cubics if capped else 0, PARTS=capped and config.parts,
        EVEN_K=fills_tiles(operands, "k", config), GUARD_V=guarded(operands, sources), **options,
    )  # fmt: skip


LARGEST_BOUND = 50.0  # caps up to it: weights from 2^-96 to 2^50 whatever the scores, see `scores.bound_of`


def bounded(call: Call, operands: Operands, config: Config) -> bool:
    """Whether the cap bounds a row's scores so well that its maximum need not be known, and nothing is ever rescaled.

    Not where something is added to a capped score. Not in float16, whose weights end at 2^-24; bfloat16 has the range
    of the float32 sums, and the same digits at 2^-96 as at 1.
    """
    flags = operands.flags
    capped = flags["SOFTCAP"] and not flags["BIAS"] and not flags["ALIBI"]
    return capped and not config.portable and call.v.dtype != torch.float16 and operands.scaling[1] <= LARGEST_BOUND


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
