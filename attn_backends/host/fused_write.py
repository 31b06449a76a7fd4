"""`append_kv` on a GPU: K and V of all new tokens in one launch. Needs triton; imported where a cache is on a GPU.

Not for float64: `takes` says so, and torch writes that.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from attn_backends.host.kernels.write import write_tokens
from attn_backends.quantization import RANGES

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

TILE = 4096  # numbers of a program
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_FORMATS = {torch.int8: "int8", torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
_SCALE = {"none": "none", "per_tensor": "head", "per_head": "head", "per_channel": "channel", "per_token_head": "token"}
Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One tensor on its way: rows [tokens, Hkv, D], cache [pages, page, Hkv, D] and descale as views, in that order."""

    rows: torch.Tensor
    cache: torch.Tensor
    descale: torch.Tensor | None
    granularity: str

    @property
    def scale_strides(self) -> Strides:
        """(page, cell, head) by token, else (head, column)."""
        scale = self.descale
        if scale is None or self.granularity == "per_tensor":
            return 0, 0
        return (scale.stride(0), 0) if self.granularity == "per_head" else scale.stride()

    @property
    def format(self) -> str:
        """int8, e4m3, e5m2, or dense."""
        return _FORMATS.get(self.cache.dtype, "dense")

    @property
    def codes(self) -> torch.Tensor:
        """The cache, one of fp8 as bytes."""
        return (
            self.cache.view(torch.uint8)
            if self.cache.dtype.itemsize == 1 and self.cache.dtype.is_floating_point
            else self.cache
        )

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and largest number that the cache stores; of no use where it is dense."""
        return RANGES.get(str(self.cache.dtype).removeprefix("torch."), (0.0, 0.0))


def takes(target: Target) -> bool:
    """Whether the kernel writes such tensors."""
    return target.rows.dtype in _FLOATS and target.cache.dtype in (*_FLOATS, *_FORMATS)


def write(k: Target, v: Target, slots: torch.Tensor) -> None:
    """Store every token whose slot is one of the cache's."""
    tokens, heads, width = k.rows.shape
    width_v = v.rows.shape[2]
    page_size = k.cache.shape[1]
    block_d, block_dv = power_of_two(width), power_of_two(width_v)
    block_h = min(power_of_two(heads), max(1, TILE // max(block_d, block_dv)))
    with on_device(k.rows.device):
        write_tokens[(tokens, -(-heads // block_h), 2)](
            k.rows, v.rows, k.codes, v.codes, k.descale, v.descale, slots,
            k.rows.stride(), v.rows.stride(), k.cache.stride(), v.cache.stride(), k.scale_strides, v.scale_strides,
            slots.stride(0), page_size, k.cache.shape[0] * page_size, heads, width, width_v, *k.range, *v.range,
            BLOCK_H=block_h, BLOCK_D=block_d, BLOCK_DV=block_dv, K_SCALE=_SCALE[k.granularity], V_SCALE=_SCALE[v.granularity],
            K_FORMAT=k.format, V_FORMAT=v.format,
        )  # fmt: skip


def power_of_two(count: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << (count - 1).bit_length()


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
