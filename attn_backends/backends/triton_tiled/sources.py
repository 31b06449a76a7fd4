"""How a kernel reads the call's tensors: all of them through tensor descriptors, or all through pointers and strides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from attn_backends.backends.triton_tiled.choice import chosen
from attn_backends.backends.triton_tiled.configs import Config, Traits, extras_of, padded
from attn_backends.backends.triton_tiled.descriptors import ALIGNMENT, describable, describe
from attn_backends.backends.triton_tiled.operands import Operands, Strides, strides_of

if TYPE_CHECKING:
    from attn_backends.call import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """config: the tiles; tensors: q, k, v and, backward, dO, as tensors or descriptors; strides: theirs.

    options: compile-time constants.
    """

    config: Config
    tensors: tuple[Any, ...]
    strides: tuple[Strides, ...]
    tma: bool
    options: dict[str, Any]


def sources_of(
    direction: str, call: Call, operands: Operands, config: Config | None = None, d_out: torch.Tensor | None = None
) -> Sources:
    """Read what the call's memory allows; K and V end with the last key that some query may see.

    config: None for the one that is shipped.
    """
    tensors = (call.q, call.k, call.v) if d_out is None else (call.q, call.k, call.v, d_out)
    strides = tuple(strides_of(tensor, call.layout) for tensor in tensors)
    sizes = operands.sizes
    packed_q, packed_k = operands.packed
    last = last_visible(operands)
    shapes = [
        _shape(tensor, operands.batch, heads, tokens, packed)
        for tensor, (heads, tokens, packed) in zip(
            tensors,
            (
                (sizes.heads, sizes.longest_q, packed_q),
                *((sizes.kv_heads, last, packed_k),) * 2,
                (sizes.heads, sizes.longest_q, packed_q),
            ),
            strict=False,
        )
    ]
    described = all(map(describable, tensors, strides, shapes))
    if config is None:
        config = chosen(direction, call, _traits(operands, tensors, strides, described))
    tma = config.tma and described
    rows = (config.rows, config.columns, config.columns, config.rows)
    return Sources(
        config=config,
        tensors=tuple(
            describe(tensor, stride, shape, count, padded(tensor.shape[-1]))
            for tensor, stride, shape, count in zip(tensors, strides, shapes, rows, strict=False)
        ) if tma else tensors,
        strides=strides,
        tma=tma,
        options=_options(operands, config, tma, strides, call.q.dtype),
    )  # fmt: skip


def _traits(
    operands: Operands, tensors: tuple[torch.Tensor, ...], strides: tuple[Strides, ...], described: bool
) -> Traits:
    wide = any(tensor.element_size() > tensors[0].element_size() for tensor in tensors)
    return Traits(
        described=described,
        aligned=all(map(_aligned, tensors, strides)),
        extras=extras_of({**operands.flags, "WIDE_OUTPUT": wide}),
    )


def _aligned(tensor: torch.Tensor, strides: Strides) -> bool:
    """Whether Triton knows that a row's chunks of 16 bytes may be read at once."""
    batch, head, token, width = strides
    return width == 1 and not (tensor.data_ptr() % ALIGNMENT or batch % 16 or head % 16 or token % 16)


def last_visible(operands: Operands) -> int:
    """Where the keys of a dense sequence end that some query may see; nothing behind is ever used."""
    sizes, flags = operands.sizes, operands.flags
    if not flags["RIGHT"]:
        return sizes.longest_k
    offset = sizes.longest_k - sizes.longest_q if flags["BOTTOM_RIGHT"] else 0
    return max(1, min(sizes.longest_k, sizes.longest_q + offset + operands.band[1]))


def leaves_32_bits(rows: int, *strides: Strides) -> bool:
    """Whether an offset inside one tile of that many rows does not fit 32 bits."""
    return any(rows * abs(token) + _WIDEST * abs(width) >= 2**31 for _batch, _head, token, width in strides)


_WIDEST = 256


def _shape(tensor: torch.Tensor, batch: int, heads: int, tokens: int, packed: bool) -> tuple[int, int, int, int]:
    """(batch, heads, tokens, width) of a tensor's memory."""
    return (1, heads, tensor.shape[0], tensor.shape[-1]) if packed else (batch, heads, tokens, tensor.shape[-1])


def _options(
    operands: Operands, config: Config, tma: bool, strides: tuple[Strides, ...], dtype: torch.dtype
) -> dict[str, Any]:
    sizes = operands.sizes
    width, width_v = padded(sizes.width), padded(sizes.width_v)
    return {
        "BLOCK_M": config.rows,
        "BLOCK_N": config.columns,
        "BLOCK_D": width,
        "BLOCK_DV": width_v,
        **operands.flags,
        "TMA": tma,
        "WIDE": leaves_32_bits(max(config.rows, config.columns), *strides),
        "PADDED_D": width != sizes.width,
        "PADDED_DV": width_v != sizes.width_v,
        "PRECISION": "tf32x3" if dtype == torch.float32 else "ieee",
        "FAST_TANH": config.arch > 0 and dtype != torch.float32,
        "num_warps": config.warps,
        "num_stages": config.stages,
    }
