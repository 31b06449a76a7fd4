"""The launches of the backward kernels for one call, in the order delta, (dK, dV), dQ, d bias."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from attn_backends.backends.triton_tiled.backward_bias import BIAS_PARTS
from attn_backends.backends.triton_tiled.backward_keys import ANY_RATIO, KEYS
from attn_backends.backends.triton_tiled.backward_queries import QUERIES
from attn_backends.backends.triton_tiled.backward_rows import ROWS
from attn_backends.backends.triton_tiled.block_lists import NO_LISTS, key_lists, query_lists
from attn_backends.backends.triton_tiled.configs import Config, shared_width
from attn_backends.backends.triton_tiled.launch import fills_tiles, guarded, lengths_for, masks_for, stand_in
from attn_backends.backends.triton_tiled.operands import Operands, row_strides, strides_of
from attn_backends.backends.triton_tiled.sources import aligned, leaves_32_bits, sources_of
from attn_backends.backends.triton_tiled.specialization import coded
from attn_backends.backends.triton_tiled.together import Launch
from attn_backends.block_mask import as_four_dims

if TYPE_CHECKING:
    from attn_backends.call import Call

_ROWS = 64  # queries per program of the row kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A call and what the backward brings; d_out as call.out, any strides; rows are [B, H, S] or [H, T].

    norms: (what `rows_launch` makes of the LSE, None), or, with a float mask, whose lowest values leave no digits for that, (row
    maximum, lse - maximum)
    """

    call: Call
    operands: Operands
    d_out: torch.Tensor
    norms: tuple[torch.Tensor, torch.Tensor | None]
    delta: torch.Tensor


def rows_launch(
    call: Call,
    operands: Operands,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    d_lse: torch.Tensor | None,
) -> tuple[Launch, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """What writes delta and norms, shaped as lse, and, where the call asks, parts [B, Hq, ..] of the sinks' gradient; and all three."""
    sizes = operands.sizes
    delta, norms = (torch.empty(lse.shape, dtype=torch.float32, device=lse.device) for _ in range(2))
    tiles = -(-sizes.longest_q // _ROWS)
    sinks = call.sinks if call.grad_sinks else None
    shape = (operands.batch, sizes.heads, tiles)
    parts = None if sinks is None else torch.zeros(shape, dtype=torch.float32, device=lse.device)
    out_strides, d_out_strides = strides_of(out, call.layout), strides_of(d_out, call.layout)
    known = aligned(out, out_strides) and aligned(d_out, d_out_strides) and sizes.width_v % 16 == 0
    starts = operands.lengths[0]
    if starts is None and not known:
        starts = lse.view(torch.int32)
    strides: tuple[tuple[int, ...], ...] = (
        out_strides, d_out_strides, row_strides(lse), row_strides(delta if d_lse is None else d_lse), row_strides(delta)
    )  # fmt: skip
    arguments = (
        out, d_out, lse, delta if d_lse is None else d_lse, delta, norms, sinks, parts, starts,
        *(strides if known else map(coded, strides)),
        sizes.heads, sizes.longest_q, sizes.width_v, operands.present, int(d_lse is not None),
    )  # fmt: skip
    options = {
        "BLOCK_M": _ROWS, "BLOCK_DV": shared_width(sizes.width_v, sizes.width_v), "PACKED_Q": known and operands.packed[0],
        "SINKS": sinks is not None, "D_LSE": d_lse is not None or not known,
        "WIDE": leaves_32_bits(_ROWS, out_strides, d_out_strides), "PORTABLE": not known, "num_warps": 4,
    }  # fmt: skip
    kernel, grid = ROWS.member(not known, False), (tiles, sizes.heads, operands.batch)
    return Launch(kernel=kernel, grid=grid, arguments=arguments, options=options), delta, norms, parts


def keys_launches(
    incoming: Incoming, d_k: torch.Tensor, d_v: torch.Tensor, config: Config | None = None
) -> Iterator[Launch]:
    """What writes d_k and d_v, shaped as k and v, any strides."""
    call, operands = incoming.call, incoming.operands
    sizes = operands.sizes
    sources = sources_of("keys", call, operands, config, incoming.d_out)
    config = sources.config
    lists = NO_LISTS
    if call.block_mask is not None:
        lists = key_lists(call.block_mask, config.rows, config.columns, sizes.longest_q, sizes.longest_k)
    tiles = -(-sizes.longest_k // config.columns)
    norms, delta = incoming.norms, incoming.delta
    strides_k, strides_v = strides_of(d_k, call.layout), strides_of(d_v, call.layout)
    arguments = (
        *sources.tensors, *norms, delta, d_k, d_v, stand_in(operands.slopes, norms[0], sources), *masks_for(operands, sources),
        lists.tiles, lists.counts, *lengths_for(operands, norms[0], sources),
        *sources.strides, *sources.steps(row_strides(norms[0]), row_strides(delta), strides_k, strides_v),
        *sources.steps(operands.slope_strides, lists.strides),
        operands.batch, sizes.kv_heads, sizes.heads // sizes.kv_heads, sizes.longest_q, sizes.longest_k, sizes.width, sizes.width_v,
        *operands.scaling, *operands.band, operands.present, *operands.dropout,
    )  # fmt: skip
    options = {
        "GUARD": sources.tma and operands.packed[0], "EVEN_Q": fills_tiles(operands, "q", config), **sources.options
    }  # fmt: skip
    early = options["EARLY"] = multiplied_early(operands, config, options)
    kernel = ANY_RATIO if early else KEYS.member(config.portable, sources.options["ALIGNED"])
    for want_k, want_v in ((True, False), (False, True)) if config.split else ((True, True),):
        yield Launch(
            kernel=kernel, grid=(tiles * sizes.kv_heads * operands.batch,), arguments=arguments,
            options={"WANT_K": want_k, "WANT_V": want_v, **options},
        )  # fmt: skip


def multiplied_early(operands: Operands, config: Config, options: dict[str, Any]) -> bool:
    """Whether dK's kernel multiplies dp while it makes exponentials: where it has registers for that.

    Not where every tile is masked, nor, with both gradients of heads wider than 64, where tiles at the sequence's end or a
    window's edge have a loop of their own: on an H200 (triton 3.6) a window took 1.41 times what its pairs cost without one.
    """
    ends_cut = options["LEFT"] or not options["EVEN_Q"]
    room = config.width <= 64 or config.split or not ends_cut
    return room and not config.portable and not operands.masked


def queries_launch(incoming: Incoming, d_q: torch.Tensor, config: Config | None = None) -> Launch:
    """What writes d_q, shaped as q, any strides."""
    call, operands = incoming.call, incoming.operands
    sizes = operands.sizes
    sources = sources_of("queries", call, operands, config, incoming.d_out)
    config = sources.config
    lists = NO_LISTS
    if call.block_mask is not None:
        lists = query_lists(call.block_mask, config.rows, config.columns, sizes.longest_q, sizes.longest_k)
    tiles = -(-sizes.longest_q // config.rows)
    kernel = QUERIES.member(config.portable, sources.options["ALIGNED"])
    norms, delta = incoming.norms, incoming.delta
    arguments = (
        *sources.tensors, *norms, delta, d_q, stand_in(operands.slopes, norms[0], sources), *masks_for(operands, sources),
        lists.tiles, lists.counts, *lengths_for(operands, norms[0], sources),
        *sources.strides, *sources.steps(row_strides(norms[0]), row_strides(delta), strides_of(d_q, call.layout)),
        *sources.steps(operands.slope_strides, lists.strides),
        sizes.heads, sizes.heads // sizes.kv_heads, sizes.longest_q, sizes.longest_k, sizes.width, sizes.width_v,
        *operands.scaling, *operands.band, operands.present, *operands.dropout,
    )  # fmt: skip
    options = {
        "GUARD": guarded(operands, sources), "EVEN_K": fills_tiles(operands, "k", config), **sources.options
    }  # fmt: skip
    return Launch(kernel=kernel, grid=(tiles * sizes.heads * operands.batch,), arguments=arguments, options=options)


def launch_bias(incoming: Incoming, config: Config | None = None) -> torch.Tensor:
    """The float mask's gradient, float32 and shaped as the mask."""
    call, operands = incoming.call, incoming.operands
    if call.attn_mask is None:
        raise ValueError("a call without a float mask has no gradient of one")
    sizes = operands.sizes
    sources = sources_of("bias", call, operands, config, incoming.d_out)
    config = sources.config
    batch, heads, queries, keys = as_four_dims(call.attn_mask).shape
    rows, columns = -(-sizes.longest_q // config.rows), -(-sizes.longest_k // config.columns)
    all_queries = queries == 1
    all_keys = keys == 1
    shape = (batch, heads, rows if all_queries else queries, columns if all_keys else keys)
    parts = torch.empty(shape, dtype=torch.float32, device=call.q.device)
    kernel = BIAS_PARTS.member(config.portable, sources.options["ALIGNED"])
    norms, delta = incoming.norms, incoming.delta
    kernel[(rows * columns, heads, batch)](
        *sources.tensors, *norms, delta, parts, stand_in(operands.slopes, norms[0], sources), *masks_for(operands, sources), *lengths_for(operands, norms[0], sources),
        *sources.strides, *sources.steps(row_strides(norms[0]), row_strides(delta)), *sources.steps(parts.stride(), operands.slope_strides),
        operands.batch, sizes.heads, sizes.heads // sizes.kv_heads, sizes.longest_q, sizes.longest_k,
        sizes.width, sizes.width_v,
        *operands.scaling, *operands.band, operands.present, *operands.dropout,
        ALL_BATCHES=batch == 1, ALL_HEADS=heads == 1, ALL_QUERIES=all_queries, ALL_KEYS=all_keys,
        **{name: value for name, value in sources.options.items() if name != "TMA"},
    )  # fmt: skip
    if all_queries:
        parts = parts.sum(2, keepdim=True)
    if all_keys:
        parts = parts.sum(3, keepdim=True)
    return parts.reshape(call.attn_mask.shape)
