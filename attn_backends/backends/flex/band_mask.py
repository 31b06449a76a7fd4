"""flex_attention's `BlockMask` for a band, from arithmetic on the grid of blocks: no mask of rows x keys is ever built.

A block of rows [i0, i1] and keys [j0, j1] is touched if some row reaches it, and full if every row sees all of it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask

from attn_backends.backends.torch_sdpa.band import Band

_BLOCK = 128
_UNBOUNDED = 2**30


@lru_cache(maxsize=64)
def block_mask_of(rows: int, keys: int, offset: int, left: int | None, right: int | None, device: str) -> BlockMask:
    """The block mask of a band; a cached one for a band seen before."""
    bounds = _on(device, offset, _wide(left), _wide(right))
    touched, full = _grid(rows, keys, offset, _wide(left), _wide(right), device)
    partial_count, partial_index = _ordered(touched & ~full)
    full_count, full_index = _ordered(full)
    return BlockMask.from_kv_blocks(
        partial_count, partial_index, full_count, full_index,
        BLOCK_SIZE=_BLOCK, mask_mod=_band(bounds), seq_lengths=(rows, keys),
    )  # fmt: skip


def band_arguments(band: Band, device: torch.device) -> tuple[int, int, int, int | None, int | None, str]:
    """What `block_mask_of` is asked with: plain values, so that it can be cached."""
    return band.rows, band.keys, band.offset, band.left, band.right, str(device)


@lru_cache(maxsize=64)
def _on(device: str, *numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def _wide(bound: int | None) -> int:
    return _UNBOUNDED if bound is None else min(bound, _UNBOUNDED)


def _band(bounds: torch.Tensor) -> Any:
    """mask_mod with its numbers in a tensor: other numbers are no new code."""

    def visible(b: Any, h: Any, row: Any, key: Any) -> Any:
        ahead = key - row - bounds[0]
        return (ahead <= bounds[2]) & (ahead >= -bounds[1])

    return visible


def _grid(rows: int, keys: int, offset: int, left: int, right: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(touched, full): bool [1, 1, row blocks, key blocks]."""
    first_row = torch.arange(0, rows, _BLOCK, device=device).view(-1, 1) + offset
    last_row = (first_row + _BLOCK - 1).clamp(max=rows - 1 + offset)
    first_key = torch.arange(0, keys, _BLOCK, device=device).view(1, -1)
    last_key = (first_key + _BLOCK - 1).clamp(max=keys - 1)
    touched = (last_row + right >= first_key) & (first_row - left <= last_key)
    full = (first_row + right >= last_key) & (last_row - left <= first_key)
    return touched[None, None], full[None, None]


def _ordered(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(how many per row, their indices first and in order): int32."""
    count = blocks.sum(-1, dtype=torch.int32)
    index = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return count, index.to(torch.int32).contiguous()
