"""Where each sequence of a call lies: any layout as per-sequence views [heads, tokens, width].

Dense tensors (`bshd`, `bhsd`, with or without `seq_lens`), packed ones (`cu_seqlens_*`) and paged caches
(`block_table`) all come out as logical q, k and v of one sequence; results go back through the same views. What lies
behind a sequence's own length, and the tail of its block table, is never touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from attn_backends.call import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """One sequence of the batch; first_q and first_k are rows of packed tensors, 0 where those are dense."""

    index: int
    seq_q: int
    seq_k: int
    first_q: int = 0
    first_k: int = 0
    packed_q: bool = False
    packed_k: bool = False


def sequences(call: Call) -> list[Sequence]:
    """Every sequence of the call. Copies the lengths to the host, once."""
    starts_q = None if call.cu_seqlens_q is None else call.cu_seqlens_q.tolist()
    starts_k = None if call.cu_seqlens_k is None or call.block_table is not None else call.cu_seqlens_k.tolist()
    token_dim = 2 if call.layout == "bhsd" else 1
    batch = call.q.shape[0] if starts_q is None else len(starts_q) - 1
    seq_q = [call.q.shape[token_dim]] * batch if starts_q is None else _lengths(starts_q)
    if starts_k is not None:
        seq_k = _lengths(starts_k)
    elif call.seq_lens is not None:
        seq_k = call.seq_lens.tolist()
    else:
        seq_k = [call.k.shape[token_dim]] * batch
    return [
        Sequence(
            index=b,
            seq_q=seq_q[b],
            seq_k=seq_k[b],
            first_q=0 if starts_q is None else starts_q[b],
            first_k=0 if starts_k is None else starts_k[b],
            packed_q=starts_q is not None,
            packed_k=starts_k is not None,
        )
        for b in range(batch)
    ]


def _lengths(starts: list[int]) -> list[int]:
    return [after - before for before, after in pairwise(starts)]


def query_rows(tensor: torch.Tensor, call: Call, sequence: Sequence) -> torch.Tensor:
    """A sequence's rows of q, out, or a gradient of them, as a view [Hq, seq_q, width]."""
    if sequence.packed_q:
        return tensor[sequence.first_q : sequence.first_q + sequence.seq_q].transpose(0, 1)
    return tensor[sequence.index] if call.layout == "bhsd" else tensor[sequence.index].transpose(0, 1)


def key_rows(tensor: torch.Tensor, call: Call, sequence: Sequence) -> torch.Tensor:
    """A sequence's rows of k, v, or a gradient of them, as a view [Hkv, seq_k, width]; not for a paged cache."""
    if sequence.packed_k:
        return tensor[sequence.first_k : sequence.first_k + sequence.seq_k].transpose(0, 1)
    entry = tensor[sequence.index]
    return (entry if call.layout == "bhsd" else entry.transpose(0, 1))[:, : sequence.seq_k]


def cached_rows(cache: torch.Tensor, call: Call, sequence: Sequence) -> torch.Tensor:
    """A copy of a sequence's keys out of the pages: cache [P, page, Hkv, width] (`NHD`) or `HND` -> [Hkv, seq_k, width].

    Position p lies in page block_table[b, p // page], cell p % page. Entries past the last used page are not read.
    """
    if call.block_table is None:
        raise ValueError("a call without a block_table has no paged cache")
    pages_of_cells = cache if call.kv_layout == "NHD" else cache.transpose(1, 2)
    page_size = pages_of_cells.shape[1]
    used = -(-sequence.seq_k // page_size) if sequence.seq_k else 0
    pages = call.block_table[sequence.index, :used].to(torch.int64)
    cells = _gather(pages_of_cells, pages).flatten(0, 1)
    return cells[: sequence.seq_k].transpose(0, 1)


def _gather(pages_of_cells: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    """Whole pages by number; bytes where the dtype has one, since fp8 has no gather everywhere."""
    if pages_of_cells.element_size() > 1:
        return pages_of_cells.index_select(0, pages)
    return pages_of_cells.view(torch.uint8).index_select(0, pages).view(pages_of_cells.dtype)


def lse_rows(lse: torch.Tensor, sequence: Sequence) -> torch.Tensor:
    """A sequence's rows of an LSE [B, Hq, Sq] or packed [Hq, Tq], as a view [Hq, seq_q]."""
    if sequence.packed_q:
        return lse[:, sequence.first_q : sequence.first_q + sequence.seq_q]
    return lse[sequence.index]
