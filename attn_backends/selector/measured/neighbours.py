"""Times at a place that nobody measured, between places that somebody did.

On every axis the nearest known values below and above are taken; their combinations are the corners. Those that are
known must be near, lie on both sides of every axis, and agree on the fastest backend; then times lie on the straight line
between the logarithms. Outside the known places nothing is said.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Container, Mapping, Sequence

FARTHEST = 4  # steps between two corners on one axis: a factor of 16
TIE = 1.02  # backends this near are equally the fastest

Place = tuple[int, ...]
Times = Mapping[str, float]  # milliseconds by backend


def corners(place: Place, axes: Sequence[Sequence[int]], known: Container[Place]) -> dict[Place, float]:
    """The known places around and their weights, which add up to 1; `axes` are the known values, sorted. {} outside."""
    spans = [span for value, values in zip(place, axes, strict=True) if (span := _span(value, values))]
    if len(spans) < len(place):
        return {}
    found: dict[Place, float] = {}
    for choice in itertools.product(*spans):
        corner = tuple(value for value, _ in choice)
        if corner in known:
            found[corner] = math.prod(weight for _, weight in choice)
    if any({corner[axis] for corner in found} != {value for value, _ in span} for axis, span in enumerate(spans)):
        return {}
    whole = sum(found.values())
    return {corner: weight / whole for corner, weight in found.items()}


def between(known: Mapping[Place, Times], weights: Mapping[Place, float]) -> dict[str, float]:
    """The times at the place between; those of the place itself as they are; {} where corners disagree on the fastest."""
    tables = [known[corner] for corner in weights]
    if len(tables) == 1:
        return dict(tables[0])
    shared = set(tables[0]).intersection(*tables[1:])
    fastest = [{name for name, ms in table.items() if ms <= TIE * min(table.values())} for table in tables]
    if not set.intersection(*fastest):
        return {}
    return {
        name: math.exp(sum(weight * math.log(known[corner][name]) for corner, weight in weights.items()))
        for name in sorted(shared)
    }


def _span(value: int, known: Sequence[int]) -> tuple[tuple[int, float], ...]:
    """((value, weight), ...): the value itself, or the two around it; () where these are not near."""
    below, above = bisect_right(known, value) - 1, bisect_left(known, value)
    if below < 0 or above == len(known):
        return ()
    low, high = known[below], known[above]
    if low == high:
        return ((low, 1.0),)
    if high - low > FARTHEST:
        return ()
    share = (value - low) / (high - low)
    return ((low, 1 - share), (high, share))
