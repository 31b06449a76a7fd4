"""Where the tokens of each sequence lie in the tensors of a call: views [heads, tokens, width] of any layout.

Shared by controls and by the mutants' host; knows nothing of scores. Reads the lengths on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attn_backends.call import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Sequence `index` has `seq_q` queries from packed row `first_q` on, and `seq_k` keys; None = that side is not packed."""

    index: int
    seq_q: int
    seq_k: int
    first_q: int | None = None
    first_k: int | None = None


def places(call: Call) -> list[Place]:
    """Every sequence of the call."""
    batch = call.q.shape[0] if call.cu_seqlens_q is None else len(call.cu_seqlens_q) - 1
    return [_place(call, index) for index in range(batch)]


def _place(call: Call, index: int) -> Place:
    tokens = 2 if call.layout == "bhsd" else 1
    first_q = first_k = None
    seq_q, seq_k = call.q.shape[tokens], call.k.shape[tokens]
    if call.cu_seqlens_q is not None:
        first_q, end = (int(row) for row in call.cu_seqlens_q[index : index + 2])
        seq_q = end - first_q
    if call.seq_lens is not None:
        seq_k = int(call.seq_lens[index])
    elif call.cu_seqlens_k is not None:
        first_k, end = (int(row) for row in call.cu_seqlens_k[index : index + 2])
        seq_k = end - first_k
    return Place(index=index, seq_q=seq_q, seq_k=seq_k, first_q=first_q, first_k=first_k)


def at_queries(tensor: torch.Tensor, call: Call, place: Place) -> torch.Tensor:
    """Rows of q, of an output or of a gradient of one: a view [Hq, seq_q, width]."""
    if place.first_q is not None:
        return tensor.narrow(0, place.first_q, place.seq_q).movedim(0, 1)
    rows = tensor.select(0, place.index)
    return rows if call.layout == "bhsd" else rows.movedim(0, 1)


def at_keys(tensor: torch.Tensor, call: Call, place: Place) -> torch.Tensor:
    """Rows of dense or packed k, v or of a gradient of one: a view [Hkv, seq_k, width]."""
    if place.first_k is not None:
        return tensor.narrow(0, place.first_k, place.seq_k).movedim(0, 1)
    rows = tensor.select(0, place.index)
    rows = rows if call.layout == "bhsd" else rows.movedim(0, 1)
    return rows.narrow(1, 0, place.seq_k)


def out_of_pages(cache: torch.Tensor, call: Call, place: Place) -> torch.Tensor:
    """A copy of one sequence's tokens out of a cache [P, page, H, W] (NHD) or [P, H, page, W] (HND): [H, seq_k, W]."""
    if call.block_table is None:
        raise ValueError("a call without block_table has no pages")
    cells = cache if call.kv_layout == "NHD" else cache.movedim(1, 2)
    token = torch.arange(place.seq_k, device=cache.device)
    page = call.block_table[place.index].long()[token // cells.shape[1]]
    return indexed(cells, page, token % cells.shape[1]).movedim(0, 1)


def indexed(cells: torch.Tensor, page: torch.Tensor, cell: torch.Tensor) -> torch.Tensor:
    """cells[page, cell]; one-byte formats travel as bytes, because few of them can be indexed."""
    if cells.element_size() > 1:
        return cells[page, cell]
    return cells.view(torch.uint8)[page, cell].view(cells.dtype)


def at_lse(lse: torch.Tensor, place: Place) -> torch.Tensor:
    """Rows of an LSE [B, Hq, Sq] or [Hq, Tq]: a view [Hq, seq_q]."""
    return lse.select(0, place.index) if place.first_q is None else lse.narrow(1, place.first_q, place.seq_q)
