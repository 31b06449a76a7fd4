"""The cache key of a request: every field, lengths as buckets, strides as what the table derives from them.

A bucket is a power-of-two range of lengths, cut besides at every limit that a manifest declares, so that all lengths of
a bucket are decided alike. New tokens are cut also where a declared tile begins, and the batches of several new tokens in
the middle (`tile_edges`), so that they rank alike; decodes are not. (What quarantine entries, policy rules and scopes say of
a request is in the cache key itself, as their outcome.) Whether the queries are fewer than the keys, as many or more is in
the key too.

Totals and page counts are buckets without the powers of two, cut at declared limits alone: how large they are, the
powers of two of batch and longest sequence say already, and a total or a pool that grows with its sequences would cross
its own at other lengths, so that a growing decode would cost two or three resolutions where one will do.

`canonical` is a request that stands for all requests of one key, and a function of that key alone: what ranks or checks
by length sees only it, so that equal keys give equal decisions whoever asked first.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
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
# Sizes that follow from the lengths: what they are when every sequence is as long as the longest, or in a mixed batch, when
# one is and all others have one new token.
_FOLLOWING: dict[str, Callable[[Request], int]] = {
    "total_q": lambda r: r.batch + r.seq_q - 1 if r.phase == "mixed" else r.batch * r.seq_q,
    "total_k": lambda r: r.batch * r.seq_k,
    "num_pages": lambda r: r.batch * -(-r.seq_k // (r.page_size or 1)),
}
_ORDERED = ("seq_q", "seq_k")  # the lengths whose order is part of the key
NO_CUTS: Mapping[str, tuple[int, ...]] = {}
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

    def __init__(
        self, limits: Iterable[Named], table: tuple[Row, ...] = TABLE, *, cuts: Mapping[str, tuple[int, ...]] = NO_CUTS
    ) -> None:
        """limits: as declared; cuts: by length field the first lengths of further ranges, which decodes do not have."""
        limits = tuple(limits)
        self._of_decodes = Buckets(limits, table) if any(cuts.values()) else self
        fields = fields_of(table)
        self._lengths = tuple(field.name for field in fields if field.bucketed)
        self._followed = tuple(name for name in self._lengths if name in _FOLLOWING)
        self._free = tuple(name for name in self._lengths if name not in (*_FOLLOWING, *_ORDERED))
        plain = tuple(field.name for field in fields if field.keyed and not field.bucketed)
        self._plain = attrgetter(*plain)
        self._sizes = attrgetter(*self._lengths)
        self._derived = tuple(index for index, row in enumerate(table) if row.derived)
        self._edges: dict[str, tuple[int, ...]] = {
            name: (0,) if name in _FOLLOWING else tuple(sorted({*_POWERS, *cuts.get(name, ())}))
            for name in self._lengths
        }
        self._residues: dict[str, tuple[tuple[int, int], ...]] = dict.fromkeys(self._lengths, ())
        for name, allowed in limits:
            if name in self._edges:
                self._edges[name] = tuple(sorted({*self._edges[name], *allowed.cuts}))
                self._residues[name] = tuple(sorted({*self._residues[name], *allowed.residues}))
        self.rulers = tuple([(self._edges[name], self._residues[name]) for name in self._lengths])
        self._straight = frozenset(name for name, residues in self._residues.items() if not residues)

    def key(self, request: Request, values: Values) -> tuple[Any, ...]:
        """The cache key; `values` are the request's axis values."""
        rulers = self.rulers if request.seq_q > 1 else self._of_decodes.rulers
        sizes = [
            None if size is None else _bucket(edges, residues, size)
            for (edges, residues), size in zip(rulers, self._sizes(request), strict=True)
        ]
        order = (request.seq_q > request.seq_k) - (request.seq_q < request.seq_k)
        return (self._plain(request), tuple(sizes), order, tuple([values[index] for index in self._derived]))

    def bucket(self, name: str, size: int | None) -> Any:
        """Bucket of one length: its interval, and on which declared multiples it lies."""
        if size is None:
            return None
        return _bucket(self._edges[name], self._residues[name], size)

    def canonical(self, request: Request) -> Request:
        """The request with every length at the top of its bucket, seq_q and seq_k in the order that they have.

        Equal lengths become the top of both buckets, a shorter one the top below the longer. Totals and pages become
        what the lengths make of them.
        """
        if request.seq_q <= 1 and self._of_decodes is not self:
            return self._of_decodes.canonical(request)
        seq_q, seq_k = request.seq_q, request.seq_k
        tops = {name: self._largest(size, name) for name in self._free if (size := getattr(request, name)) is not None}
        if seq_q == seq_k:
            tops["seq_q"] = tops["seq_k"] = self._largest(seq_q, "seq_q", "seq_k")
        else:
            shorter, longer = _ORDERED if seq_q < seq_k else _ORDERED[::-1]
            tops[longer] = self._largest(max(seq_q, seq_k), longer)
            tops[shorter] = self._largest(min(seq_q, seq_k), shorter, below=tops[longer])
        whole = request.resized(**tops)
        following = {
            name: self._following(name, request, whole) for name in self._followed if getattr(request, name) is not None
        }
        return with_representative_strides(whole.resized(**following) if following else whole)

    def _following(self, name: str, request: Request, whole: Request) -> int:
        asked, followed = getattr(request, name), _FOLLOWING[name](whole)
        return followed if self.bucket(name, followed) == self.bucket(name, asked) else self._largest(asked, name)

    def _largest(self, size: int, *names: str, below: float = math.inf) -> int:
        """The largest length in the bucket of `size` under each of the names; of `size` it needs the bucket alone."""
        high = int(min(below - 1, *[self._end(name, size) for name in names]))
        if self._straight.issuperset(names):
            return high
        residues = {residue for name in names for residue in self._residues[name]}
        held = [mod for mod, rest in residues if size % mod == rest]
        avoided = [(mod, rest) for mod, rest in residues if size % mod != rest]
        step = math.lcm(*held)
        top = high - (high - size) % step  # one residue modulo `step` is what all that hold come to
        return next(n for n in range(top, -1, -step) if all(n % mod != rest for mod, rest in avoided))

    def _end(self, name: str, size: int) -> int:
        """The last length of an interval; of the open one, so far up that every mixture of residues occurs twice."""
        edges = self._edges[name]
        interval = bisect_right(edges, size)
        if interval < len(edges):
            return edges[interval] - 1
        return edges[-1] + 2 * math.lcm(*(mod for mod, _ in self._residues[name]))


def _bucket(edges: tuple[int, ...], residues: tuple[tuple[int, int], ...], size: int) -> Any:
    interval = bisect_right(edges, size)
    return (interval, *(size % mod == rest for mod, rest in residues)) if residues else interval
