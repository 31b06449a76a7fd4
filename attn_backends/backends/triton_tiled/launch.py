"""Launching the forward kernel for one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.backends.triton_tiled.block_lists import NO_LISTS, query_lists
from attn_backends.backends.triton_tiled.configs import Config
from attn_backends.backends.triton_tiled.forward import attention_forward
from attn_backends.backends.triton_tiled.operands import Operands, row_strides, strides_of
from attn_backends.backends.triton_tiled.sources import Sources, leaves_32_bits, sources_of

if TYPE_CHECKING:
    import torch

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
    lists = NO_LISTS
    if call.block_mask is not None:
        lists = query_lists(call.block_mask, config.rows, config.columns, sizes.longest_q, sizes.longest_k)
    tiles = -(-sizes.longest_q // config.rows)
    scale, softcap, inner_scale = operands.scaling
    attention_forward[(tiles * sizes.heads * operands.batch,)](
        *sources.tensors, call.out, lse, call.sinks, operands.slopes, *operands.masks, lists.tiles, lists.counts, visits,
        *(tops or (None, None)),
        *operands.lengths,
        *sources.strides, out_strides, (0, 0, 0) if lse is None else row_strides(lse),
        (0, 0, 0) if tops is None else row_strides(tops[0]),
        operands.slope_strides, lists.strides,
        sizes.heads, sizes.heads // sizes.kv_heads, sizes.longest_q, sizes.longest_k, sizes.width, sizes.width_v,
        abs(scale), softcap, abs(inner_scale), *operands.band, *operands.dropout,
        SINKS=call.sinks is not None, NEGATE_Q=scale < 0.0, STORE_LSE=lse is not None, STORE_TOPS=tops is not None, COUNTED=visits is not None,
        EVEN_K=fills_tiles(operands, "k", config.columns), GUARD_V=guarded(operands, sources), **options,
    )  # fmt: skip


def fills_tiles(operands: Operands, side: str, size: int) -> bool:
    """Whether every sequence is known to end with a whole tile of `size` queries ("q") or keys ("k")."""
    packed = operands.packed[0 if side == "q" else 1]
    length = operands.sizes.longest_q if side == "q" else operands.sizes.longest_k
    return length % size == 0 and not packed and not (side == "k" and operands.flags["LENGTHS"])


def guarded(operands: Operands, sources: Sources) -> bool:
    """Whether a cut tile may hold values that no row sees and that its load did not read as 0."""
    flags = operands.flags
    return operands.masked or (sources.tma and (flags["PACKED_K"] or flags["LENGTHS"]))
