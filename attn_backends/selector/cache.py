"""The decision cache: bounded, thread-safe, two keys deep, and it counts.

First the exact question; then the bucketed one, which many exact questions share. Only a miss on both is a resolution.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from attn_backends.selector.decision import Decision


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """`resolutions`: decisions made anew; `hits`: answers from the cache; `size` of at most `max_size` decisions."""

    resolutions: int
    hits: int
    size: int
    max_size: int


class DecisionCache:
    """Two bounded dicts, oldest half dropped when full. Readers take no lock."""

    def __init__(self, max_size: int = 8192) -> None:
        self._lock = threading.RLock()
        self._exact: dict[Hashable, Decision] = {}
        self._bucketed: dict[Hashable, Decision] = {}
        self._max_size = max_size
        self._resolutions = 0
        self._hits = 0

    def get(self, exact: Hashable) -> Decision | None:
        """The decision of a question asked before, word for word."""
        found = self._exact.get(exact)
        if found is not None:
            self._hits += 1
        return found

    def resolve(self, exact: Hashable, bucketed: Hashable, make: Callable[[], Decision]) -> tuple[Decision, bool]:
        """(decision, whether it was made just now); one thread at a time makes, the others get what it made."""
        with self._lock:
            found = self._bucketed.get(bucketed)
            fresh = found is None
            if found is None:
                found = make()
                self._resolutions += 1
                _store(self._bucketed, bucketed, found, self._max_size)
            else:
                self._hits += 1
            _store(self._exact, exact, found, self._max_size)
            return found, fresh

    def clear(self) -> None:
        """Forget every decision; the counts go on."""
        with self._lock:
            self._exact.clear()
            self._bucketed.clear()

    def info(self) -> CacheInfo:
        """The counts so far."""
        return CacheInfo(self._resolutions, self._hits, len(self._bucketed), self._max_size)


def _store(entries: dict[Hashable, Decision], key: Hashable, decision: Decision, max_size: int) -> None:
    if len(entries) >= max_size:
        for old in list(entries)[: max_size // 2]:
            del entries[old]
    entries[key] = decision
