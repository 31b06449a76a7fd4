"""From storage to logic: q, K and V of a call as dense tensors in sequence order, whatever held them; and back.

Token s of sequence b lies in one cell of the storage, found by index arithmetic alone:

    dense (bshd, bhsd)   (b, s)
    packed (thd)         (0, cu_seqlens[b] + s)
    paged                (block_table[b, s // page_size], s % page_size)

Letters: B sequences, S the longest of them in tokens, H heads, W width. Shared by oracle and baseline, known to no
backend. Copies only the cells that are asked for, keeps autograd, reads no cell behind a sequence's length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attn_backends.host.arguments import Arguments


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cells:
    """Where the tokens lie: token s of sequence b is view[outer[b, s], inner[b, s]] where valid[b, s].

    outer, inner: int64 [B, S], 0 where nothing is; valid: bool [B, S]
    kind: what the storage is, "dense", "packed" or "paged"; heads_first: heads before tokens in it
    capacity: tokens that the call makes room for per sequence, at least S
    """

    outer: torch.Tensor
    inner: torch.Tensor
    valid: torch.Tensor
    kind: str
    capacity: int
    heads_first: bool = False

    @property
    def lengths(self) -> torch.Tensor:
        """int64 [B]: tokens of each sequence."""
        return self.valid.sum(dim=1)

    def view(self, storage: torch.Tensor) -> torch.Tensor:
        """The storage as [outer, inner, H, W], no copy."""
        if self.kind == "packed":
            return storage.unsqueeze(0)
        return storage.transpose(1, 2) if self.heads_first else storage

    def take(self, storage: torch.Tensor) -> torch.Tensor:
        """The tokens of every sequence in float64 [B, H, S, W], 0 behind its length."""
        return self.pick(self.view(storage))

    def pick(self, view: torch.Tensor) -> torch.Tensor:
        """`take` from a storage that is a view [outer, inner, H, W] already."""
        rows = _rows_at(view, self.outer, self.inner).to(torch.float64)
        return torch.where(self.valid[:, :, None, None], rows, 0.0).transpose(1, 2)

    def put(self, values: torch.Tensor, storage: torch.Tensor, *, add: bool = False) -> torch.Tensor:
        """Write values [B, H, S, W] into their cells of `storage`, or add them, in place; returns it."""
        rows = values.transpose(1, 2)[self.valid].to(storage.dtype)
        self.view(storage).index_put_((self.outer[self.valid], self.inner[self.valid]), rows, accumulate=add)
        return storage


def query_cells(q: torch.Tensor, a: Arguments) -> Cells:
    """Where the queries of a call lie."""
    if a.cu_seqlens_q is not None:
        return _packed(a.cu_seqlens_q, a.max_seqlen_q, q.device)
    batch, tokens = q.shape[0], q.shape[2 if a.layout == "bhsd" else 1]
    return _dense(batch, tokens, None, q.device, heads_first=a.layout == "bhsd")


def key_cells(k: torch.Tensor, a: Arguments) -> Cells:
    """Where the keys (and values) of a call lie."""
    if a.block_table is not None:
        if a.seq_lens is None:
            raise ValueError("a block_table needs seq_lens")
        return _paged(k, a.block_table.to(k.device), a.seq_lens.to(k.device), a)
    if a.cu_seqlens_k is not None:
        return _packed(a.cu_seqlens_k, a.max_seqlen_k, k.device)
    batch, tokens = k.shape[0], k.shape[2 if a.layout == "bhsd" else 1]
    return _dense(batch, tokens, a.seq_lens, k.device, heads_first=a.layout == "bhsd")


def _dense(batch: int, tokens: int, lengths: torch.Tensor | None, device: torch.device, *, heads_first: bool) -> Cells:
    sequence, token = _grid(batch, tokens, device)
    bound = tokens if lengths is None else lengths.to(device, torch.int64).unsqueeze(1)
    return Cells(
        outer=sequence, inner=token, valid=token < bound, kind="dense", capacity=tokens, heads_first=heads_first
    )


def _packed(cu_seqlens: torch.Tensor, longest: int | None, device: torch.device) -> Cells:
    starts = cu_seqlens.to(device, torch.int64)
    lengths = starts[1:] - starts[:-1]
    _sequence, token = _grid(len(lengths), _longest(lengths), device)
    valid = token < lengths.unsqueeze(1)
    row = torch.where(valid, starts[:-1].unsqueeze(1) + token, 0)
    capacity = _longest(lengths) if longest is None else longest
    return Cells(outer=torch.zeros_like(row), inner=row, valid=valid, kind="packed", capacity=capacity)


def _paged(cache: torch.Tensor, table: torch.Tensor, seq_lens: torch.Tensor, a: Arguments) -> Cells:
    heads_first = a.kv_layout == "HND"
    page_size = cache.shape[2 if heads_first else 1]
    _sequence, token = _grid(len(seq_lens), _longest(seq_lens), table.device)
    valid = token < seq_lens.to(torch.int64).unsqueeze(1)
    page = table.to(torch.int64).gather(1, torch.where(valid, token // page_size, 0)) if valid.numel() else token
    return Cells(
        outer=torch.where(valid, page, 0),
        inner=torch.where(valid, token % page_size, 0),
        valid=valid,
        kind="paged",
        capacity=table.shape[1] * page_size if a.max_seqlen_k is None else a.max_seqlen_k,
        heads_first=heads_first,
    )


def _grid(batch: int, tokens: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of the sequence and of the token, each int64 [B, S]."""
    sequence = torch.arange(batch, device=device).unsqueeze(1).expand(batch, tokens)
    return sequence, torch.arange(tokens, device=device).expand(batch, tokens)


def _longest(lengths: torch.Tensor) -> int:
    return int(lengths.max()) if len(lengths) else 0


def _rows_at(view: torch.Tensor, outer: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
    """view[outer, inner]: [B, S, H, W]. One-byte floats travel as bytes, since few devices index them."""
    if view.element_size() > 1:
        return view[outer, inner]
    return view.view(torch.uint8)[outer, inner].view(view.dtype)
