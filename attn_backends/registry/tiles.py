"""`Tiles`: how a tiled kernel cuts its work, as a manifest says it for the cost model. Read by the registry alone.

A manifest lists rows, as a kernel's own table of pipelines does; the first one that serves a call holds. A call that none
serves counts with the defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from math import gcd
from typing import Any

MOST = 1 << 16
FASTEST = 4
PACKS = ("always", "to_fill")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tiles:
    """Queries and keys of a tile, and how tiles share a multiprocessor. Alike rows are one object.

    backward: serves backward passes, and no others
    head_dim, causal, longest: serves heads of at most this width, this mask, at most so many queries a sequence
    drain: keys that take as long as filling and draining the pipeline of one tile
    pace: how fast a tile is, 1 being the shares that the manifest declares
    resident: tiles that a multiprocessor works on at the same time
    balanced: tiles are handed out as multiprocessors get free, the long ones first
    split: keys are split over multiprocessors where the tiles are too few for them
    packs: the query heads of a group share tiles, `always`, or `to_fill` them
    uniform: short sequences beside longer ones take tiles of as many rows
    """

    backward: bool = False
    head_dim: int | None = None
    causal: bool | None = None
    longest: int | None = None
    rows: int = 128
    keys: int = 128
    drain: int = 160
    pace: float = 1.0
    resident: int = 1
    balanced: bool = False
    split: bool = False
    packs: str | None = None
    uniform: bool = False

    edge: int = field(init=False, repr=False)  # keys that a tile adds at two edges, besides as many as it has queries
    work: float = field(init=False, repr=False)  # its rows, the more the slower it is

    def __post_init__(self) -> None:
        object.__setattr__(self, "edge", self.keys - gcd(self.rows, self.keys))
        object.__setattr__(self, "work", self.rows / self.pace)


DEFAULT = Tiles()


@lru_cache(maxsize=1024)
def of_pass(rows: tuple[Tiles, ...], backward: bool) -> tuple[Tiles, ...]:
    """The rows of one pass."""
    return tuple([one for one in rows if one.backward == backward])


def serving(able: tuple[Tiles, ...], seq_q: int) -> Tiles:
    """The first of the rows from `of_any_length` that holds for a call with sequences of so many queries."""
    for one in able:
        if one.longest is None or seq_q <= one.longest:
            return one
    return DEFAULT


@lru_cache(maxsize=1024)  # every decision asks for all backends, of few head widths
def of_any_length(rows: tuple[Tiles, ...], head_dim: int, causal: bool) -> tuple[Tiles, ...]:
    """The rows that hold for heads of this width under this mask, however many queries there are."""
    return tuple(
        [
            one
            for one in rows
            if (one.head_dim is None or head_dim <= one.head_dim) and (one.causal is None or causal == one.causal)
        ]
    )


# Whether a value is one of a kind, and what is said of another.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "boolean": (lambda one: type(one) is bool, "not true or false"),
    "integer": (lambda one: type(one) is int and 0 < one <= MOST, f"no whole number from 1 to {MOST}"),
    "number": (lambda one: type(one) in (int, float) and 0 < one <= FASTEST, f"no number above 0, up to {FASTEST}"),
    "string": (lambda one: one in PACKS, f"not one of {', '.join(PACKS)}"),
}
_NOT_WHOLE = {
    **dict.fromkeys(("backward", "causal", "balanced", "split", "uniform"), "boolean"),
    "pace": "number",
    "packs": "string",
}
KEYS = {one.name: _NOT_WHOLE.get(one.name, "integer") for one in fields(Tiles) if one.init}


@cache
def _made(**given: Any) -> Tiles:
    return Tiles(**given)


def read_tiles(value: Any) -> Tiles:
    """One row of a manifest's `tiles`. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a table")
    for key, one in value.items():
        if key not in KEYS:
            raise ValueError(f"{key} is not one of {', '.join(KEYS)}")
        fits, what = _KINDS[KEYS[key]]
        if not fits(one):
            raise ValueError(f"{key} = {one!r} is {what}")
    return _made(**value)
