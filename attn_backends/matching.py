"""Which boxes a request fits, for all boxes of all backends at once.

Every (axis, value) has a bit mask over all boxes: the boxes that refuse it. The masks are memoised, and so is what they
come to for axes that have few values together, so that a request costs a dict lookup per length and one for what lies
between; the boxes it fits are the bits that no mask has. Light core: standard library only.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from attn_backends.box import Box, Miss, Table, Values
from attn_backends.capability import FITS_ANY, TABLE

_MEMO_LIMIT = 4096  # values remembered per axis (lengths are many)
Missed = tuple[tuple[Miss, int], ...]  # (axis, boxes that refuse its value), for axes that some box refuses


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """How one backend stands: the box it fits, or else its nearest box and what is missed there."""

    box: Box
    misses: tuple[Miss, ...]

    @property
    def fits(self) -> bool:
        """Whether the request fits the box whole."""
        return not self.misses


class _Stretch(NamedTuple):
    """Axes from `start` up to `end`, and what was found for values of all of them together."""

    start: int
    end: int
    memo: dict[Values, Missed]


def _stretches(table: Table) -> list[tuple[int, int]]:
    """Where the table is cut: lengths, of which there are many, stand alone, and what lies between them together."""
    lengths = [index for index, row in enumerate(table) if row.bucketed]
    cuts = sorted({0, *lengths, *(index + 1 for index in lengths), len(table)})
    return list(itertools.pairwise(cuts))


class MatchIndex:
    """Boxes of several backends, indexed. Thread-safe: memo entries are pure values."""

    def __init__(self, groups: Sequence[Sequence[Box]], table: Table = TABLE) -> None:
        self._table = table
        self._boxes = tuple(box for group in groups for box in group)
        self._all = (1 << len(self._boxes)) - 1
        self._ranges: list[tuple[int, int]] = []
        start = 0
        for group in groups:
            self._ranges.append((start, start + len(group)))
            start += len(group)
        self._axes: list[list[tuple[int, int, dict[Any, int]]]] = [
            [(index, part, {}) for part in range(max(1, len(row.parts)))] for index, row in enumerate(table)
        ]
        self._stretches = [_Stretch(start, end, {}) for start, end in _stretches(table)]
        self._verdicts: dict[Any, tuple[Verdict, ...]] = {}

    def match(self, values: Values) -> tuple[Verdict, ...]:
        """One verdict per group, in order. No box fits: the one that misses the fewest axes, first in file order."""
        missed = self._missed(values)
        found = self._verdicts.get(missed)  # who refuses what is all that a verdict depends on
        if found is None:
            found = self._judge(missed)
            if len(self._verdicts) >= _MEMO_LIMIT:
                self._verdicts.clear()
            self._verdicts[missed] = found
        return found

    def _judge(self, missed: Missed) -> tuple[Verdict, ...]:
        refused = 0
        again: list[int] = []  # boxes that miss a further part of an axis that they miss already
        row, of_row = -1, 0
        for (index, _), mask in missed:
            refused |= mask
            if index == row and of_row & mask:
                again.append(of_row & mask)
            of_row = of_row | mask if index == row else mask
            row = index
        return tuple([self._verdict(start, end, refused, missed, again) for start, end in self._ranges])

    def _missed(self, values: Values) -> Missed:
        """(axis, boxes that refuse its value) for every axis that any box refuses."""
        missed: Missed = ()
        for start, end, memo in self._stretches:
            given = values[start:end]
            found = memo.get(given)
            if found is None:
                found = self._missed_by_axis(start, given)
                if len(memo) >= _MEMO_LIMIT:
                    memo.clear()
                memo[given] = found
            missed += found
        return missed

    def _missed_by_axis(self, start: int, values: Values) -> Missed:
        """The same for the axes from `start` on."""
        missed: list[tuple[Miss, int]] = []
        for index, value in enumerate(values, start):
            for row, part, memo in self._axes[index] if value is not FITS_ANY else ():
                one = value[part] if self._table[row].parts else value
                refusing = memo.get(one)
                if refusing is None:
                    refusing = self._refusing(row, part, one, memo)
                if refusing:
                    missed.append(((row, part), refusing))
        return tuple(missed)

    def _refusing(self, index: int, part: int, value: Any, memo: dict[Any, int]) -> int:
        row = self._table[index]
        mask = 0
        for bit, box in enumerate(self._boxes):
            if not box.admits(row, index, part, value):
                mask |= 1 << bit
        if len(memo) >= _MEMO_LIMIT:
            memo.clear()
        memo[value] = mask
        return mask

    def _verdict(self, start: int, end: int, refused: int, missed: Missed, again: list[int]) -> Verdict:
        for bit in range(start, end):
            if not refused >> bit & 1:
                return Verdict(self._boxes[bit], ())
        best: tuple[int, int, tuple[Miss, ...]] | None = None
        for bit in range(start, end):
            misses = tuple([miss for miss, mask in missed if mask >> bit & 1])
            axes = len(misses) - sum([mask >> bit & 1 for mask in again]) if again else len(misses)
            if best is None or axes < best[0]:
                best = (axes, bit, misses)
        if best is None:
            raise ValueError("a backend without boxes cannot be matched")
        return Verdict(self._boxes[best[1]], best[2])
