"""`Requests`: a call's sequences as FlashInfer takes them, in plain numbers on the host.

FlashInfer's causal arithmetic is unsigned and fails where a sequence has more rows than keys. Its first rows, which see
nothing, therefore become a request of their own, without keys; so do the rows of a sequence that has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Rows and keys per request, in the order of the call's packed rows and keys."""

    rows: tuple[int, ...]
    keys: tuple[int, ...]

    @property
    def blank(self) -> bool:
        """Whether no row sees any key."""
        return not any(rows and keys for rows, keys in zip(self.rows, self.keys, strict=True))

    @property
    def total_rows(self) -> int:
        """Rows of all requests."""
        return sum(self.rows)

    @property
    def row_starts(self) -> list[int]:
        """Where each request's rows start, and the end: [requests + 1]."""
        return list(accumulate(self.rows, initial=0))

    @property
    def key_starts(self) -> list[int]:
        """Where each request's keys start, and the end: [requests + 1]."""
        return list(accumulate(self.keys, initial=0))

    def page_starts(self, page_size: int) -> list[int]:
        """Where each request's pages start, and the end: [requests + 1]."""
        return list(accumulate((-(-keys // page_size) for keys in self.keys), initial=0))

    def last_page_lengths(self, page_size: int) -> list[int]:
        """Cells in use of each request's last page, from 1 to page_size; a full page where there is none."""
        return [(keys - 1) % page_size + 1 for keys in self.keys]

    def empty_rows(self) -> list[int]:
        """The rows that see nothing, ascending."""
        starts = self.row_starts
        return [
            row
            for start, rows, keys in zip(starts, self.rows, self.keys, strict=False)
            if not keys
            for row in range(start, start + rows)
        ]


def requests_of(rows: Sequence[int], keys: Sequence[int], *, causal: bool) -> Requests:
    """The requests of sequences with these lengths; a sequence without rows keeps its keys' place."""
    parts: list[tuple[int, int]] = []
    for own_rows, own_keys in zip(rows, keys, strict=True):
        blind = own_rows if own_keys == 0 else max(own_rows - own_keys, 0) if causal else 0
        parts += [(blind, 0)] if blind else []
        parts += [(own_rows - blind, own_keys)] if own_rows > blind or own_keys else []
    return Requests(rows=tuple(part[0] for part in parts), keys=tuple(part[1] for part in parts))
