"""`Point`: one cell to be timed and the bucket that its times stand for; where points come from, and their order. No torch.

A run may end anywhere, so the ends of a kind's sizes come before their middle, and all kinds advance together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attn_backends.bench.cell import Cell
from attn_backends.calibrate.cells import NoCellError, cell_of
from attn_backends.calibrate.grid import grid_cells
from attn_backends.errors import RequestError
from attn_backends.planning import layer_kinds, requests
from attn_backends.request import Request
from attn_backends.selector.measured.bucket import Bucket, bucket_of

SHORTEST = 256  # tokens of the shortest context of a model that is timed
BATCHES = {"prefill": (1, 4), "append": (4,), "decode": (1, 16, 128), "training": (4,)}


@dataclass(frozen=True, slots=True)
class Point:
    """A cell, and the bucket that it is measured for."""

    cell: Cell
    bucket: Bucket


@dataclass(frozen=True, slots=True)
class Points:
    """What is to be timed; `left_out`: what cannot be, in words, with how many requests."""

    points: tuple[Point, ...]
    left_out: Mapping[str, int]


def of_grid(kind: str) -> Points:
    """The built-in shapes for a kind of device."""
    points: dict[Bucket, Point] = {}
    for cell in grid_cells(kind):
        bucket = bucket_of(cell.request())
        points.setdefault(bucket, Point(cell, bucket))
    return Points(_ordered(points.values()), {})


def of_config(config: dict[str, Any], *, context: int | None = None, dtype: str | None = None) -> Points:
    """The calls of a model, at lengths from 256 to its context by fours and several batches."""
    found: list[Request] = []
    for kind in layer_kinds(config):
        longest = max(one.request.seq_k for one in requests(kind, context=context))
        for length in _lengths(longest):
            for batch in sorted({batch for batches in BATCHES.values() for batch in batches}):
                made = requests(kind, context=length, batch=batch, dtype=dtype)
                found += [one.request for one in made if batch in BATCHES[one.phase]]
    return of_requests(found)


def of_records(records: Iterable[Mapping[str, Any]]) -> Points:
    """The calls of a decision log; records of another version's requests are left out."""
    found, strange = [], 0
    for record in records:
        try:
            found.append(Request.from_json(record["request"]))
        except (RequestError, KeyError):
            strange += 1
    made = of_requests(found)
    return Points(made.points, {**made.left_out, **({"requests of another version": strange} if strange else {})})


def of_requests(asked: Iterable[Request]) -> Points:
    """One point per bucket, at the top of it."""
    points: dict[Bucket, Point] = {}
    left_out: dict[str, int] = {}
    for request in asked:
        bucket = bucket_of(request)
        if bucket in points:
            continue
        try:
            points[bucket] = point_of(request)
        except NoCellError as error:
            left_out[str(error)] = left_out.get(str(error), 0) + 1
    return Points(_ordered(points.values()), left_out)


def point_of(request: Request) -> Point:
    """The top of a request's bucket. Raises NoCellError."""
    bucket = bucket_of(request)
    return Point(cell_of(_top(request), f"{bucket.kind} {bucket.place}"), bucket)


def _top(request: Request) -> Request:
    """The largest request of the bucket, sequence lengths and batch as powers of two; lengths that differ still do."""
    batch, seq_q, seq_k = [1 << max(0, size - 1).bit_length() for size in (request.batch, request.seq_q, request.seq_k)]
    if seq_q == seq_k and request.seq_q < request.seq_k:
        seq_q -= 1
    if seq_q == seq_k and request.seq_q > request.seq_k:
        seq_k -= 1
    sizes = {"batch": batch, "seq_q": seq_q, "seq_k": seq_k}
    if request.phase == "mixed" and request.total_q is not None:
        sizes["total_q"] = batch + seq_q - 1
    if request.total_k is not None:
        sizes["total_k"] = batch * seq_k
    if request.page_size is not None:
        sizes["num_pages"] = batch * -(-seq_k // request.page_size)
    return request.replace(**sizes)


def _lengths(longest: int) -> list[int]:
    """Powers of four times 256 below the longest, and the longest."""
    return [*itertools.takewhile(lambda n: n < longest, (SHORTEST * 4**i for i in range(16))), longest]


def _ordered(points: Iterable[Point]) -> tuple[Point, ...]:
    kinds: dict[str, list[Point]] = {}
    for point in points:
        kinds.setdefault(f"{point.bucket.kind} {point.cell.panel}", []).append(point)
    columns = [_ends_first(sorted(own, key=lambda point: point.bucket.place)) for own in kinds.values()]
    rows = itertools.zip_longest(*columns)
    return tuple(point for row in rows for point in row if point is not None)


def _ends_first(points: list[Point]) -> Iterator[Point]:
    """The first, the last, the middle, the middles of the halves, and so on."""
    seen: set[int] = set()
    last = len(points) - 1
    parts = 1
    while len(seen) < len(points):
        for part in range(parts + 1):
            index = round(last * part / parts)
            if index not in seen:
                seen.add(index)
                yield points[index]
        parts *= 2


def joined(parts: Iterable[Points]) -> Points:
    """Several sources as one, each bucket once."""
    points: dict[Bucket, Point] = {}
    left_out: dict[str, int] = {}
    for part in parts:
        for point in part.points:
            points.setdefault(point.bucket, point)
        for what, count in part.left_out.items():
            left_out[what] = left_out.get(what, 0) + count
    return Points(_ordered(points.values()), left_out)
