"""Times at a place that nobody measured, between places that somebody did.

On every axis a known value below and one above are taken, or the value itself; their combinations are the corners. Those that
are known must be near, lie on both sides of every axis, and agree on the fastest backend; then times lie on the straight line
between the logarithms. The nearest values that have such corners are taken: a part of the grid may be finer than the rest.
Outside the known places nothing is said.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Container, Mapping, Sequence

FARTHEST = 4  # steps between two corners on one axis: a factor of 16
TIE = 1.02  # backends this near are equally the fastest

Place = tuple[int, ...]
Times = Mapping[str, float]  # milliseconds by backend
Span = tuple[tuple[int, float], ...]  # on one axis: (known value, weight)


def corners(place: Place, known: Collection[Place]) -> dict[Place, float]:
    """The known places around and their weights, which add up to 1; {} outside. A place of another width is none of them."""
    alike = [one for one in known if len(one) == len(place)]
    near = [one for one in alike if all(abs(a - b) < FARTHEST for a, b in zip(one, place, strict=True))]
    axes = [sorted({one[axis] for one in near}) for axis in range(len(place))]
    choices = [_spans(value, values) for value, values in zip(place, axes, strict=True)]
    for spans in sorted(itertools.product(*choices), key=lambda spans: sum(map(_width, spans))):
        if found := _cornered(spans, known):
            return found
    return {}


def _cornered(spans: Sequence[Span], known: Container[Place]) -> dict[Place, float]:
    """The corners that these spans have; {} where those that are known leave a side of an axis out."""
    found: dict[Place, float] = {}
    for choice in itertools.product(*spans):
        corner = tuple([value for value, _ in choice])
        if corner in known:
            found[corner] = math.prod([weight for _, weight in choice])
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


def _spans(value: int, known: Sequence[int]) -> list[Span]:
    """((value, weight), ...): the value itself, and every two around it that are near enough."""
    below = [one for one in known if value - FARTHEST < one < value]
    above = [one for one in known if value < one < value + FARTHEST]
    pairs = [(low, high) for low in below for high in above if high - low <= FARTHEST]
    exact: list[Span] = [((value, 1.0),)] if value in known else []
    return exact + [((low, (high - value) / (high - low)), (high, (value - low) / (high - low))) for low, high in pairs]


def _width(span: Span) -> int:
    return span[-1][0] - span[0][0]
