"""The page table as FlashInfer takes it: the pages in use, sequence after sequence, without the table's tails."""

from __future__ import annotations

import torch


def pages_in_use(block_table: torch.Tensor, seq_lens: torch.Tensor, page_size: int, total: int) -> torch.Tensor:
    """int32 [total], from int32 [B, columns] and the lengths; `total` is known on the host, so that nothing waits."""
    counts = (seq_lens + (page_size - 1)) // page_size
    sequence = torch.repeat_interleave(counts, output_size=total)
    starts = counts.cumsum(0) - counts
    column = torch.arange(total, device=block_table.device) - starts[sequence]
    return block_table[sequence, column]
