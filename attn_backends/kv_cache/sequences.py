"""`Sequences`: which pages every sequence has, in order, and where its next tokens go. No tensors.

Sequences share pages after a fork. A page that several hold is never written to: whoever grows into one that is partly
filled gets a copy first (copy on write). Every change either happens as a whole or, when pages run out, not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from attn_backends.errors import RequestError
from attn_backends.kv_cache.pool import PagePool

Name = Hashable


@dataclass(slots=True)
class Pages:
    """The pages of one sequence, and how many tokens are in them."""

    numbers: list[int] = field(default_factory=list)
    length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """slots: page * page_size + cell of every new token, sequence after sequence; copies: pages (from, to) to copy first."""

    slots: list[int]
    copies: list[tuple[int, int]]


class Sequences:
    """Sequences by name over one pool."""

    def __init__(self, pool: PagePool, page_size: int) -> None:
        """Raises RequestError for a page size below 1."""
        if type(page_size) is not int or page_size < 1:
            raise RequestError("page_size", page_size, "a whole number >= 1")
        self._pool, self._page_size = pool, page_size
        self._pages: dict[Name, Pages] = {}

    def __contains__(self, name: Name) -> bool:
        return name in self._pages

    def __iter__(self) -> Iterator[Name]:
        return iter(self._pages)

    def __getitem__(self, name: Name) -> Pages:
        """Raises RequestError for a name that is not there."""
        found = self._pages.get(name)
        if found is None:
            raise RequestError("sequence", name, "a sequence of this cache")
        return found

    def add(self, name: Name) -> None:
        """A new, empty sequence. Raises RequestError for a name that is taken."""
        if name in self._pages:
            raise RequestError("sequence", name, "a name that is not taken")
        self._pages[name] = Pages()

    def fork(self, source: Name, name: Name) -> None:
        """A new sequence that begins as another one, on the same pages."""
        shared = self[source]
        self.add(name)
        self._pool.share(shared.numbers)
        self._pages[name] = Pages(list(shared.numbers), shared.length)

    def free(self, name: Name) -> None:
        """Forget a sequence; pages that nobody else holds are free."""
        self._pool.release(self[name].numbers)
        del self._pages[name]

    def truncate(self, name: Name, length: int) -> None:
        """Forget a sequence's last tokens. Raises RequestError for a length that it does not have."""
        pages = self[name]
        if type(length) is not int or not 0 <= length <= pages.length:
            raise RequestError("length", length, f"0 to {pages.length}, the sequence's length")
        kept = self._pages_for(length)
        self._pool.release(pages.numbers[kept:])
        del pages.numbers[kept:]
        pages.length = length

    def grow(self, tokens: Mapping[Name, int]) -> Growth:
        """Room for so many tokens more per sequence. Raises OutOfPagesError, RequestError; then nothing has changed."""
        for name, count in tokens.items():
            if type(count) is not int or count < 0:
                raise RequestError("tokens", count, f"a whole number >= 0 for sequence {name!r}")
        self._pool.need(self._needed(tokens))
        growth = Growth(slots=[], copies=[])
        for name, count in tokens.items():
            self._grow_one(self[name], count, growth)
        return growth

    def compact(self) -> dict[int, int]:
        """Renumber the pages in use to 0, 1, ...: old number -> new, for those that change."""
        moved = self._pool.compact()
        for pages in self._pages.values():
            pages.numbers = [moved.get(page, page) for page in pages.numbers]
        return moved

    def _pages_for(self, length: int) -> int:
        return -(-length // self._page_size)

    def _needed(self, tokens: Mapping[Name, int]) -> int:
        """New pages, and copies: of those who grow into a shared page, one may keep it if all of its holders grow."""
        fresh = 0
        written: Counter[int] = Counter()
        for name, count in tokens.items():
            pages = self[name]
            fresh += self._pages_for(pages.length + count) - len(pages.numbers)
            if count and pages.length % self._page_size:
                written[pages.numbers[-1]] += 1
        return fresh + sum(min(count, self._pool.holders(page) - 1) for page, count in written.items())

    def _grow_one(self, pages: Pages, count: int, growth: Growth) -> None:
        if count and pages.length % self._page_size and self._pool.holders(pages.numbers[-1]) > 1:
            shared, [own] = pages.numbers[-1], self._pool.take(1)
            self._pool.release([shared])
            pages.numbers[-1] = own
            growth.copies.append((shared, own))
        pages.numbers += self._pool.take(self._pages_for(pages.length + count) - len(pages.numbers))
        for position in range(pages.length, pages.length + count):
            page = pages.numbers[position // self._page_size]
            growth.slots.append(page * self._page_size + position % self._page_size)
        pages.length += count
