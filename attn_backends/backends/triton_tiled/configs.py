"""Tile sizes as data (`configs.toml`), looked up by direction, architecture and what the call is. Imports no torch."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

DIRECTIONS = ("forward", "keys", "queries", "bias")

# How much a feature adds to what a kernel keeps in registers per score, on top of causal, windows, sinks and lengths.
EXTRAS = {
    "SOFTCAP": 1, "ALIBI": 1, "INNER_MASK": 1, "WIDE_OUTPUT": 1, "BIAS": 2, "BOOL_MASK": 2, "BLOCK_MASK": 2, "DROPOUT": 2
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Tile sizes and launch options of one kernel; `rows` of queries, `columns` of keys.

    arch .. last_arch, bytes, width, tma, aligned and extras say which calls the row serves: configs.toml has the words.
    portable: one kernel for many widths, bands and memories.
    parts: whether a warp has whole rows of scores, so that threads may sum up their own.
    cubics: of eight weights under a softcap that bounds them, how many are worked out by a polynomial (`weights.py`).
    shared, spills: bytes of shared memory per block, and of spilled registers per thread; upper bounds over those calls.
    """

    arch: int
    last_arch: int = 999
    bytes: int
    width: int
    tma: bool = False
    aligned: bool = False
    extras: int = 99
    rows: int
    columns: int
    warps: int
    stages: int
    split: bool = False
    portable: bool = False
    parts: bool = False
    cubics: int = 0
    shared: int = 0
    spills: int = 0

    def serves(self, arch: int, size: int, width: int, traits: Traits) -> bool:
        """Whether this row is for calls like that one."""
        return (
            self.arch <= arch <= self.last_arch
            and size <= self.bytes
            and width <= self.width
            and self.tma <= traits.described
            and self.aligned <= traits.aligned
            and traits.extras <= self.extras
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a call lets a kernel do.

    described: a tensor descriptor of q, k, v and dO exists
    aligned: their rows begin at multiples of 16 elements and 16 bytes, and widths have stride 1
    extras: the sum of `EXTRAS` over the features it asks for
    """

    described: bool
    aligned: bool
    extras: int


@cache
def configs() -> dict[str, tuple[Config, ...]]:
    """Every shipped configuration by direction, in order of preference."""
    text = (files(__package__) / "configs.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    return {direction: tuple(Config(**row) for row in tables[direction]) for direction in DIRECTIONS}


@cache
def config_for(direction: str, arch: int, size: int, width: int, traits: Traits) -> Config | None:
    """The first configuration that serves this architecture (major * 10 + minor), element size and padded width."""
    rows = configs()[direction]
    return next((row for row in rows if row.serves(arch, size, width, traits)), None)


def extras_of(features: Mapping[str, bool]) -> int:
    """The sum of `EXTRAS` over the features that are on; others count nothing."""
    return sum(weight for name, weight in EXTRAS.items() if features.get(name))


def padded(width: int) -> int:
    """The width of a tile for a head of this width: a power of two, at least 16."""
    return max(16, 1 << (width - 1).bit_length())


def shared_width(width: int, width_v: int) -> int:
    """The one width of all tiles of a portable kernel."""
    return max(64, padded(width), padded(width_v))
