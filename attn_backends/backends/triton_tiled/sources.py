"""How a kernel reads the call's tensors: all of them through tensor descriptors, or all through pointers and strides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from attn_backends.backends.triton_tiled.choice import chosen
from attn_backends.backends.triton_tiled.configs import Config, Traits, extras_of, padded, shared_width
from attn_backends.backends.triton_tiled.descriptors import ALIGNMENT, describable, describe
from attn_backends.backends.triton_tiled.operands import Operands, Strides, strides_of
from attn_backends.backends.triton_tiled.specialization import coded

if TYPE_CHECKING:
    from attn_backends.call import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """config: the tiles; tensors: q, k, v and, backward, dO, as tensors or descriptors; strides: theirs, as the kernel takes them.

    options: compile-time constants.
    """

    config: Config
    tensors: tuple[Any, ...]
    strides: tuple[tuple[int, ...], ...]
    tma: bool
    options: dict[str, Any]

    def steps(self, *strides: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Strides as the kernel takes them."""
        return tuple(map(coded, strides)) if self.config.portable else strides


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
    traits = _traits(operands, tensors, strides, described)
    if config is None:
        config = chosen(direction, call, traits)
    tma = config.tma and described
    rows = (config.rows, config.columns, config.columns, config.rows)
    return Sources(
        config=config,
        tensors=tuple(
            describe(tensor, stride, shape, count, padded(tensor.shape[-1]))
            for tensor, stride, shape, count in zip(tensors, strides, shapes, rows, strict=False)
        ) if tma else tensors,
        strides=_UNREAD * len(tensors) if tma else tuple(map(coded, strides)) if config.portable else strides,
        tma=tma,
        options=_options(operands, config, tma, strides, call.q.dtype, traits.aligned),
    )  # fmt: skip


def _traits(
    operands: Operands, tensors: tuple[torch.Tensor, ...], strides: tuple[Strides, ...], described: bool
) -> Traits:
    wide = any(tensor.element_size() > tensors[0].element_size() for tensor in tensors)
    return Traits(
        described=described,
        aligned=all(map(aligned, tensors, strides)),
        extras=extras_of({**operands.flags, "WIDE_OUTPUT": wide}),
    )


def aligned(tensor: torch.Tensor, strides: Strides) -> bool:
    """Whether Triton knows that a row's chunks of 16 bytes may be read at once."""
    batch, head, token, width = strides
    return width == 1 and not (tensor.data_ptr() % ALIGNMENT or batch % 16 or head % 16 or token % 16)


def last_visible(operands: Operands) -> int:
    """Where the keys of a dense sequence end that some query may see; nothing behind is ever used."""
    sizes, flags = operands.sizes, operands.flags
    if not flags["RIGHT"]:
        return sizes.longest_k
    _left, right, bottom_right = operands.band
    offset = (sizes.longest_k - sizes.longest_q) * bottom_right
    return max(1, min(sizes.longest_k, sizes.longest_q + offset + right))


def leaves_32_bits(rows: int, *strides: Strides) -> bool:
    """Whether an offset inside one tile of that many rows does not fit 32 bits."""
    return any(rows * abs(token) + _WIDEST * abs(width) >= 2**31 for _batch, _head, token, width in strides)


_WIDEST = 256
_UNREAD: tuple[Strides, ...] = ((0, 0, 0, 0),)  # a descriptor has its own


def _shape(tensor: torch.Tensor, batch: int, heads: int, tokens: int, packed: bool) -> tuple[int, int, int, int]:
    """(batch, heads, tokens, width) of a tensor's memory."""
    return (1, heads, tensor.shape[0], tensor.shape[-1]) if packed else (batch, heads, tokens, tensor.shape[-1])


# What portable kernels are always ready for, and what they ask `present` for.
_ANYTHING = {
    "LEFT": True, "RIGHT": True, "ALIBI": True, "PACKED_Q": False, "PACKED_K": False, "LENGTHS": False
}  # fmt: skip


def _options(
    operands: Operands, config: Config, tma: bool, strides: tuple[Strides, ...], dtype: torch.dtype, aligned: bool
) -> dict[str, Any]:
    sizes = operands.sizes
    width, width_v = padded(sizes.width), padded(sizes.width_v)
    if config.portable:
        width = width_v = shared_width(sizes.width, sizes.width_v)
    return {
        "BLOCK_M": config.rows,
        "BLOCK_N": config.columns,
        "BLOCK_D": width,
        "BLOCK_DV": width_v,
        **operands.flags,
        **(_ANYTHING if config.portable else {}),
        "INNER_MASK": operands.flags["INNER_MASK"] or (config.portable and operands.flags["BLOCK_MASK"]),
        "PORTABLE": config.portable,
        "ALIGNED": config.portable and aligned and sizes.width % 16 == sizes.width_v % 16 == 0,
        "TMA": tma,
        "WIDE": leaves_32_bits(max(config.rows, config.columns), *strides),
        "PADDED_D": config.portable or width != sizes.width,
        "PADDED_DV": config.portable or width_v != sizes.width_v,
        "PRECISION": "tf32x3" if dtype == torch.float32 else "ieee",
        "FAST_TANH": config.arch > 0 and dtype != torch.float32,
        "num_warps": config.warps,
        "num_stages": config.stages,
    }
