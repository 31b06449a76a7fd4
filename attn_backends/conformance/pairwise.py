"""A greedy pairwise cover: few tests in which every two options of two different factors meet, where they may.

A test picks one option per factor. `build` turns picks into a thing, or None where they do not go together; what the
factor's first option stands for is then kept. No torch, and nothing of attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Generic, TypeVar

T = TypeVar("T")
Option = tuple[int, int]  # (factor, option)
Pair = tuple[Option, Option]
Build = Callable[[dict[int, int]], T | None]


class Cover(Generic[T]):
    """Tests so far, and the pairs that no test has yet."""

    def __init__(self, sizes: Sequence[int], build: Build[T]) -> None:
        self._sizes = tuple(sizes)
        self._build = build
        self.open: dict[Pair, None] = dict.fromkeys(_all_pairs(self._sizes))
        self.total = len(self.open)

    def tests(self, limit: int | None = None) -> list[T]:
        """Tests until every pair is met or ruled out, at most `limit`."""
        found: list[T] = []
        while self.open and (limit is None or len(found) < limit):
            made = self._next()
            if made is not None and made not in found:
                found.append(made)
        return found

    def _next(self) -> T | None:
        """One test around the first open pair; the pair is closed either way."""
        pair = next(iter(self.open))
        del self.open[pair]
        picks = dict(pair)
        made = self._build(picks)
        if made is None:
            return None
        for factor in range(len(self._sizes)):
            if factor not in picks:
                made = self._extend(picks, factor, made)
        self._close(picks)
        return made

    def _extend(self, picks: dict[int, int], factor: int, made: T) -> T:
        """Pick the option of a factor that meets most open pairs and goes with the rest."""
        options = sorted(range(self._sizes[factor]), key=lambda option: -self._gain(picks, (factor, option)))
        for option in options:
            longer = self._build({**picks, factor: option})
            if longer is not None:
                picks[factor] = option
                return longer
        return made

    def _gain(self, picks: dict[int, int], option: Option) -> int:
        return sum(_ordered(option, other) in self.open for other in picks.items())

    def _close(self, picks: dict[int, int]) -> None:
        for one, other in combinations(picks.items(), 2):
            self.open.pop(_ordered(one, other), None)


def _ordered(one: Option, other: Option) -> Pair:
    return (one, other) if one[0] < other[0] else (other, one)


def _all_pairs(sizes: Sequence[int]) -> list[Pair]:
    """Every pair, later options first: first options are the plain ones."""
    pairs = [
        ((a, option), (b, other))
        for a, b in combinations(range(len(sizes)), 2)
        for option in range(sizes[a])
        for other in range(sizes[b])
    ]
    return sorted(pairs, key=lambda pair: -min(pair[0][1], 1) - min(pair[1][1], 1))
