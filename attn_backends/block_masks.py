"""Ready-made `BlockMask`s: from a predicate, from index sets, Longformer's pattern, documents in one sequence.

Letters: Sq/Sk queries and keys of the call, block_q/block_k the block size. A mask holds one bool per block, and, only
where the pattern cuts through a block, one bool per (query, key): Sq * Sk bytes. Building goes block row by block row,
so it needs no more than that. What is returned is cheap to keep and to share between layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from attn_backends.block_mask import BlockMask
from attn_backends.errors import RequestError

Predicate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
BlockSize = int | tuple[int, int]


def from_predicate(
    visible: Predicate, seq_q: int, seq_k: int, *, block_size: BlockSize = 128, device: torch.device | str = "cpu"
) -> BlockMask:
    """The mask of `visible(query, key) -> bool`, evaluated on whole tensors of positions.

    visible: gets int64 positions [rows, 1] and [1, Sk] and returns a bool tensor that broadcasts to [rows, Sk]
    Raises RequestError where it returns something else.
    """
    block_q, block_k = _pair(block_size)
    keys = torch.arange(seq_k, device=device).unsqueeze(0)
    any_rows, token_rows, cut = [], [], False
    for first in range(0, seq_q, block_q):
        queries = torch.arange(first, min(first + block_q, seq_q), device=device).unsqueeze(1)
        row = _bools(visible(queries, keys), (queries.shape[0], seq_k))
        some, every = _per_block(row, block_k)
        any_rows.append(some)
        token_rows.append(row)
        cut = cut or bool((some != every).any())
    blocks = (
        torch.stack(any_rows) if any_rows else torch.zeros((0, -(-seq_k // block_k)), dtype=torch.bool, device=device)
    )
    mask = torch.cat(token_rows)[None, None] if cut else None
    return BlockMask(blocks[None, None], (block_q, block_k), mask)


def from_index_sets(
    columns: Sequence[Sequence[int]], seq_k: int, *, block_size: BlockSize = 128, device: torch.device | str = "cpu"
) -> BlockMask:
    """Whole blocks: `columns[i]` are the numbers of the key blocks that query block i sees.

    Raises RequestError for a number outside 0 .. ceil(Sk / block_k) - 1.
    """
    block_q, block_k = _pair(block_size)
    count = -(-seq_k // block_k)
    blocks = torch.zeros((len(columns), count), dtype=torch.bool)
    for row, seen in enumerate(columns):
        for column in seen:
            if not 0 <= column < count:
                raise RequestError(
                    "columns", column, f"a block number in 0 .. {count - 1}", hint=f"in query block {row}"
                )
            blocks[row, column] = True
    return BlockMask(blocks.to(device)[None, None], (block_q, block_k))


def longformer(
    seq: int,
    window: int,
    global_tokens: Sequence[int],
    *,
    block_size: BlockSize = 128,
    device: torch.device | str = "cpu",
) -> BlockMask:
    """A two-sided window of `window` tokens besides oneself, and tokens that see and are seen by all.

    Beltagy, Peters, Cohan: Longformer, the long-document transformer; arXiv 2004.05150. Raises RequestError for a
    window below 0 or a token outside the sequence.
    """
    if window < 0:
        raise RequestError("window", window, "a whole number >= 0")
    outside = [token for token in global_tokens if not 0 <= token < seq]
    if outside:
        raise RequestError("global_tokens", outside[0], f"positions in 0 .. {seq - 1}")
    special = torch.zeros(max(seq, 1), dtype=torch.bool, device=device)
    if len(global_tokens):
        special[torch.tensor(list(global_tokens), device=device)] = True
    return from_predicate(
        lambda query, key: ((query - key).abs() <= window) | special[query] | special[key],
        seq,
        seq,
        block_size=block_size,
        device=device,
    )


def documents(cu_seqlens: torch.Tensor, *, block_size: BlockSize = 128) -> BlockMask:
    """Several documents in one sequence: a token sees its own document alone.

    cu_seqlens: int32 or int64 [documents + 1], first tokens, as for packed tensors; the last is the sequence's length.
    Compose with `causal=True` for causal documents. Raises RequestError for another rank or a decreasing list.
    """
    if (
        cu_seqlens.dim() != 1
        or cu_seqlens.numel() < 1
        or bool((cu_seqlens.diff() < 0).any())
        or int(cu_seqlens[0]) != 0
    ):
        raise RequestError("cu_seqlens", cu_seqlens.tolist(), "a list that starts with 0 and never decreases")
    length = int(cu_seqlens[-1])
    positions = torch.arange(length, device=cu_seqlens.device)
    document = torch.searchsorted(cu_seqlens.to(torch.int64), positions, right=True)
    return from_predicate(
        lambda query, key: document[query] == document[key],
        length,
        length,
        block_size=block_size,
        device=cu_seqlens.device,
    )


def _pair(size: BlockSize) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else size
    if min(pair) < 1:
        raise RequestError("block_size", size, "a whole number >= 1, or a pair (queries, keys) of them")
    return pair


def _bools(found: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    if found.dtype != torch.bool:
        raise RequestError("visible", str(found.dtype), "a predicate that returns torch.bool")
    return found.expand(shape)


def _per_block(row: torch.Tensor, block_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether some, and whether every (query, key) of each key block is visible: bool [blocks] each."""
    seen = row.to(torch.int32).sum(0)
    counts = torch.nn.functional.pad(seen, (0, -seen.shape[0] % block_k)).reshape(-1, block_k).sum(1)
    sizes = torch.full_like(counts, block_k * row.shape[0])
    if seen.shape[0] % block_k:
        sizes[-1] = seen.shape[0] % block_k * row.shape[0]
    return counts > 0, counts == sizes
