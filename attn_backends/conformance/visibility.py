"""Who sees whom: one dense bool tensor per call, built from index arithmetic, written apart from every backend.

    position[b, i] = i + (Sk_b - Sq_b)  (`bottom_right`)   or   i  (`top_left`)
    distance[b, i, j] = j - position[b, i]
    visible = distance <= 0 (causal)  and  -left <= distance <= right (window)  and  masks  and  both tokens exist

Letters: B sequences, Hq query heads, Sq/Sk the longest query and key sequence, Sq_b/Sk_b those of sequence b.
"""

from __future__ import annotations

import torch

from attn_backends.block_mask import BlockMask
from attn_backends.conformance.logical import Cells
from attn_backends.host.arguments import Arguments

MINUS_INF = float("-inf")


def distances(queries: Cells, keys: Cells, a: Arguments) -> torch.Tensor:
    """int64 [B, Sq, Sk]: how far behind (negative) or ahead (positive) of the query's own position each key lies."""
    device = queries.valid.device
    position = torch.arange(queries.valid.shape[1], device=device).expand(queries.valid.shape)
    if a.causal_alignment == "bottom_right":
        position = position + (keys.lengths - queries.lengths).unsqueeze(1)
    return torch.arange(keys.valid.shape[1], device=device) - position.unsqueeze(2)


def visible_keys(queries: Cells, keys: Cells, distance: torch.Tensor, a: Arguments, heads: int) -> torch.Tensor:
    """Bool [B, Hq, Sq, Sk]: what every row sees."""
    seen = queries.valid[:, :, None] & keys.valid[:, None, :]
    if a.causal:
        seen = seen & (distance <= 0)
    if a.window_left >= 0:
        seen = seen & (distance >= -a.window_left)
    if a.window_right >= 0:
        seen = seen & (distance <= a.window_right)
    batch, rows, columns = distance.shape
    visible = seen.unsqueeze(1).expand(batch, heads, rows, columns)
    if a.attn_mask is not None:
        mask = cut(a.attn_mask, rows, columns)
        visible = visible & (mask if mask.dtype == torch.bool else mask != MINUS_INF)
    if a.block_mask is not None:
        visible = visible & _of_blocks(a.block_mask, rows, columns, distance.device)
    return visible


def float_mask(a: Arguments, rows: int, columns: int) -> torch.Tensor | None:
    """What a float mask adds, [B|1, Hq|1, Sq|1, Sk|1] with 0 where it hides; None without one."""
    if a.attn_mask is None or a.attn_mask.dtype == torch.bool:
        return None
    mask = cut(a.attn_mask, rows, columns)
    return torch.where(mask == MINUS_INF, 0.0, mask.to(torch.float64))


def cut(mask: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """A mask of 2 to 4 dims as 4 dims, its last two cut to what the longest sequences need."""
    full = mask[(None,) * (4 - mask.dim())]
    return full[:, :, : max(rows, 1), : max(columns, 1)] if rows and columns else full[:, :, :rows, :columns]


def _of_blocks(mask: BlockMask, rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Bool [B|1, Hq|1, Sq, Sk]: the block of row i and key j is (i // block_q, j // block_k)."""
    block_row = torch.arange(rows, device=device).unsqueeze(1) // mask.block_q
    block_column = torch.arange(columns, device=device).unsqueeze(0) // mask.block_k
    seen = mask.blocks.to(device)[:, :, block_row, block_column]
    return seen if mask.mask is None else seen & cut(mask.mask.to(device), rows, columns)
