"""Tile sizes as data (`configs.toml`), looked up by architecture and by what the call is. Imports no torch."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What decides on the tiles of a call.

    size: bytes of an element of q; stored: of one of K and one of V together; width: of a head, padded
    rows: query rows per KV head of the longest sequence; units: sequences times KV heads
    """

    size: int
    stored: int
    width: int
    rows: int
    units: int

    @classmethod
    def of(
        cls, *, size: int, stored: int, widths: tuple[int, int], rows: int, units: int, batch_invariant: bool
    ) -> Traits:
        """A row's sums must not depend on its batch under `batch_invariant`: the batch counts as any."""
        anything = NO_LIMIT if batch_invariant else 0
        width = padded(max(widths))
        return cls(size=size, stored=stored, width=width, rows=max(rows, anything), units=max(units, anything))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Tile sizes and launch options of the main kernel; `rows` of queries, `columns` of keys.

    arch .. last_arch, bytes, stored, width, tile, units say which calls the row serves: configs.toml has the words.
    programs: how many are meant to run on a multiprocessor at a time
    shared: bytes of shared memory per block; an upper bound over those calls
    registers: whether the next tile of keys waits in registers, with stages = 1
    maxnreg: registers of a thread at most, so that more programs fit; 0: as many as the compiler likes
    """

    arch: int
    last_arch: int
    bytes: int
    stored: int
    width: int
    tile: int = NO_LIMIT
    units: int = NO_LIMIT
    rows: int
    columns: int
    warps: int
    stages: int
    programs: int
    shared: int = 0
    registers: bool = False
    maxnreg: int = 0

    def serves(self, arch: int, traits: Traits) -> bool:
        """Whether this row is for calls like that one, on that architecture (major * 10 + minor)."""
        return (
            self.arch <= arch <= self.last_arch
            and traits.size <= self.bytes
            and traits.stored <= self.stored
            and traits.width <= self.width
            and traits.rows <= self.tile
            and traits.units <= self.units
        )


@cache
def configs() -> tuple[Config, ...]:
    """Every shipped configuration, in order of preference."""
    text = (files(__package__) / "configs.toml").read_text(encoding="utf-8")
    return tuple(Config(**row) for row in tomllib.loads(text)["attend"])


@cache
def config_for(arch: int, traits: Traits) -> Config | None:
    """The first configuration that serves such a call."""
    return next((row for row in configs() if row.serves(arch, traits)), None)


def padded(width: int) -> int:
    """The width of a tile for a head of this width: a power of two, at least 16."""
    return max(16, 1 << (width - 1).bit_length())


def parts(width: int) -> tuple[int, int]:
    """A wide head as two tiles that fill it, 576 = 512 + 64 and 192 = 128 + 64; others as one, (padded, 0)."""
    first = 1 << (width.bit_length() - 1)
    rest = width - first
    if width > _ONE_TILE and rest >= _LEAST_PART and rest & (rest - 1) == 0:
        return first, rest
    return padded(width), 0


_ONE_TILE = 128  # widths up to which a head is one tile, whatever it holds
_LEAST_PART = 16  # columns of a product
