"""Which key tiles a query tile visits under a `BlockMask`: the block mask's own blocks, regrouped into kernel tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from attn_backends.block_mask import BlockMask


class TileLists(NamedTuple):
    """tiles int32 [B | 1, H | 1, rows, columns]: column numbers of visible tiles first, in order; counts [.., rows].

    `strides` = (batch, head, row) into counts with 0 where broadcast, and the number of columns.
    """

    tiles: torch.Tensor
    counts: torch.Tensor
    strides: tuple[int, int, int, int]


NO_LISTS = TileLists(None, None, (0, 0, 0, 0))  # type: ignore[arg-type]  # where there is no block mask


def query_lists(mask: BlockMask, rows: int, columns: int, seq_q: int, seq_k: int) -> TileLists:
    """Per tile of `rows` queries, the tiles of `columns` keys that hold a visible block."""
    return _lists(_visible_tiles(mask, rows, columns, seq_q, seq_k))


def key_lists(mask: BlockMask, rows: int, columns: int, seq_q: int, seq_k: int) -> TileLists:
    """Per tile of `columns` keys, the tiles of `rows` queries that hold a visible block."""
    return _lists(_visible_tiles(mask, rows, columns, seq_q, seq_k).transpose(-1, -2))


def _visible_tiles(mask: BlockMask, rows: int, columns: int, seq_q: int, seq_k: int) -> torch.Tensor:
    by_row = _regrouped(mask.blocks.to(torch.int32), -2, mask.block_q, rows, seq_q)
    return _regrouped(by_row, -1, mask.block_k, columns, seq_k) > 0


def _regrouped(blocks: torch.Tensor, dim: int, block: int, tile: int, length: int) -> torch.Tensor:
    """How many visible blocks each tile of `tile` positions touches, along one dim, by differences of running sums."""
    starts = torch.arange(0, length, tile, device=blocks.device)
    first = starts // block
    behind = (torch.clamp(starts + tile, max=length) - 1) // block + 1
    sums = blocks.cumsum(dim)
    sums = torch.cat([torch.zeros_like(sums.narrow(dim, 0, 1)), sums], dim)
    return (sums.index_select(dim, behind) - sums.index_select(dim, first)).to(torch.int32)


def _lists(visible: torch.Tensor) -> TileLists:
    counts = visible.sum(-1, dtype=torch.int32).contiguous()
    tiles = visible.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32).contiguous()
    batch, head = (0 if counts.shape[dim] == 1 else counts.stride(dim) for dim in (0, 1))
    return TileLists(tiles, counts, (batch, head, 1, visible.shape[-1]))
