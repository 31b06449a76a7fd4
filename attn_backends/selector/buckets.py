"""The cache key of a request: every field, lengths as buckets, strides as what the table derives from them.

A bucket is a power-of-two range of lengths, cut besides at every limit that a manifest declares, so that all lengths of
a bucket are decided alike. (What quarantine entries, policy rules and scopes say of a request is in the cache key
itself, as their outcome.) `canonical` is the bucket's representative: its
top. What ranks or checks by length sees only the canonical request, so that equal keys give equal decisions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from attn_backends.box import Box, Values
from attn_backends.capability import TABLE, Row
from attn_backends.request_fields import fields_of
from attn_backends.strides import with_representative_strides
from attn_backends.values import Allowed

if TYPE_CHECKING:
    from attn_backends.request import Request

_POWERS = tuple([0, 1] + [2**exponent + 1 for exponent in range(63)])
Named = tuple[str, Allowed]  # (length field, what is declared of it)


def declared_lengths(boxes: Iterable[Box], table: tuple[Row, ...] = TABLE) -> list[Named]:
    """Every limit on a length that the boxes declare."""
    rows = [(index, row) for index, row in enumerate(table) if row.bucketed]
    return [
        (name, allowed)
        for box in boxes
        for index, row in rows
        for name, allowed in zip(row.parts or (row.axis,), box.entries[index], strict=True)
        if allowed is not None
    ]


class Buckets:
    """Bucket edges per length field, and the cache key made with them."""

    def __init__(self, limits: Iterable[Named], table: tuple[Row, ...] = TABLE) -> None:
        fields = fields_of(table)
        self._lengths = tuple(field.name for field in fields if field.bucketed)
        plain = tuple(field.name for field in fields if field.keyed and not field.bucketed)
        self._plain = attrgetter(*plain)
        self._sizes = attrgetter(*self._lengths)
        self._derived = tuple(index for index, row in enumerate(table) if row.derived)
        self._edges: dict[str, tuple[int, ...]] = dict.fromkeys(self._lengths, _POWERS)
        self._residues: dict[str, tuple[tuple[int, int], ...]] = dict.fromkeys(self._lengths, ())
        for name, allowed in limits:
            if name in self._edges:
                self._edges[name] = tuple(sorted({*self._edges[name], *allowed.cuts}))
                self._residues[name] = tuple(sorted({*self._residues[name], *allowed.residues}))

    def key(self, request: Request, values: Values) -> tuple[Any, ...]:
        """The cache key; `values` are the request's axis values."""
        sizes = [self.bucket(name, size) for name, size in zip(self._lengths, self._sizes(request), strict=True)]
        return (self._plain(request), tuple(sizes), tuple([values[index] for index in self._derived]))

    def bucket(self, name: str, size: int | None) -> Any:
        """Bucket of one length: its interval, and on which declared multiples it lies."""
        if size is None:
            return None
        interval = bisect_right(self._edges[name], size)
        residues = self._residues[name]
        return (interval, *(size % mod == rest for mod, rest in residues)) if residues else interval

    def canonical(self, request: Request) -> Request:
        """The request with every length at the top of its bucket (or as it is, where that changes what it asks)."""
        tops = {name: self._top(name, getattr(request, name)) for name in self._lengths}
        if request.seq_q != request.seq_k and tops["seq_q"] == tops["seq_k"]:
            shorter = "seq_q" if request.seq_q < request.seq_k else "seq_k"
            if self.bucket(shorter, tops[shorter] - 1) == self.bucket(shorter, getattr(request, shorter)):
                tops[shorter] -= 1
        return with_representative_strides(request.replace(**tops))

    def _top(self, name: str, size: int | None) -> Any:
        if size is None:
            return None
        wanted = self.bucket(name, size)
        top = self._edges[name][bisect_right(self._edges[name], size)] - 1
        for candidate in range(top, max(size, top - 8192), -1):
            if self.bucket(name, candidate) == wanted:
                return candidate
        return size
