"""How long each sequence of a case is, and how many rows and pages that makes. Plain arithmetic; no torch here.

A ragged case mixes lengths on purpose: shorter, full, no keys, no queries, one below the longest; with a paged cache one
past, at and one before a page boundary. The longest are always the case's own `seq_q` and `seq_k`.
"""

from __future__ import annotations

from dataclasses import dataclass

from attn_backends.conformance.case import Case

TAIL = 3  # rows of a packed K and V that no sequence owns
SPARE_PAGES = 3  # pages of the pool that no table names within a length


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens per sequence, each [B]."""

    q: tuple[int, ...]
    k: tuple[int, ...]


def lengths_of(case: Case) -> Lengths:
    """The lengths of a case's sequences."""
    every = range(case.batch)
    q = tuple(_ragged_q(case, index) if case.ragged and case.layout == "thd" else case.seq_q for index in every)
    k = tuple(_ragged_k(case, index) if case.ragged else case.seq_k for index in every)
    return Lengths(q=q, k=k)


def _ragged_q(case: Case, index: int) -> int:
    seq = case.seq_q
    pattern = (-(-seq * 2 // 3), seq, (seq + 1) // 2, 0, min(seq, 1))
    return pattern[1 if case.batch == 1 else index % len(pattern)]


def _ragged_k(case: Case, index: int) -> int:
    seq, page = case.seq_k, case.page_size
    if page is None:
        pattern = (-(-seq * 3 // 5), seq, 0, min(seq, 1), max(seq - 1, 0))
    else:
        whole = min(max(seq // page - 1, 1) * page, seq)
        pattern = (min(whole + 1, seq), seq, 0, whole, max(whole - 1, 0))
    return pattern[1 if case.batch == 1 else index % len(pattern)]


def tail_rows(case: Case) -> int:
    """Rows behind the last packed sequence of K and V."""
    return TAIL if case.ragged and case.layout == "thd" and case.page_size is None else 0


def pages_of(case: Case, lengths: Lengths | None = None) -> tuple[tuple[int, ...], int, int]:
    """(used pages per sequence, pages in the pool, columns of the table); raises ValueError without a page size.

    `lengths`: other ones than the case's own.
    """
    if case.page_size is None:
        raise ValueError(f"{case.id} has no pages")
    used = tuple(-(-length // case.page_size) for length in (lengths or lengths_of(case)).k)
    return used, sum(used) + SPARE_PAGES, -(-case.seq_k // case.page_size) + 1


def phase_of(case: Case) -> str:
    """The phase that the call has: the case's own, else what its lengths mean."""
    if case.phase is not None:
        return case.phase
    if case.page_size is None:
        return "prefill"
    if case.seq_q <= 1:
        return "decode"
    return "append" if min(lengths_of(case).q, default=0) > 1 else "mixed"
