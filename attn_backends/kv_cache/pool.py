"""`PagePool`: which pages of a cache are free, and how many sequences hold each of the others. No tensors."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from attn_backends.errors import OutOfPagesError, RequestError


class PagePool:
    """Pages 0 to size - 1. The lowest free page is taken first, so that what is in use stays together."""

    def __init__(self, size: int) -> None:
        """Raises RequestError for a pool without pages."""
        if type(size) is not int or size < 1:
            raise RequestError("num_pages", size, "a whole number >= 1")
        self._free = list(range(size))
        self._holders = [0] * size

    @property
    def size(self) -> int:
        """Pages in all."""
        return len(self._holders)

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def holders(self, page: int) -> int:
        """How many sequences hold a page."""
        return self._holders[page]

    def need(self, count: int) -> None:
        """Raise OutOfPagesError unless so many pages are free; nothing is changed."""
        if count > self.free:
            raise OutOfPagesError(
                f"{count} pages are needed, {self.free} of {self.size} are free; free a sequence or make a larger cache"
            )

    def take(self, count: int) -> list[int]:
        """Hold so many free pages. Raises OutOfPagesError, and then takes none."""
        self.need(count)
        pages = [heapq.heappop(self._free) for _ in range(count)]
        self.share(pages)
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """One more holder for each."""
        for page in pages:
            self._holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder less for each; a page without holders is free."""
        for page in pages:
            self._holders[page] -= 1
            if self._holders[page] == 0:
                heapq.heappush(self._free, page)

    def compact(self) -> dict[int, int]:
        """Renumber the pages in use to 0, 1, ... in their order: old number -> new, for those that change."""
        used = [page for page, holders in enumerate(self._holders) if holders]
        moved = {old: new for new, old in enumerate(used) if old != new}
        self._holders = [self._holders[page] for page in used] + [0] * (self.size - len(used))
        self._free = list(range(len(used), self.size))
        return moved
