"""Tile sizes as data (`configs.toml`), looked up by architecture and by what the call is. Imports no torch."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Tile sizes and launch options of the main kernel; `rows` of queries, `columns` of keys.

    arch .. last_arch, bytes, stored, width, tile say which calls the row serves: configs.toml has the words.
    programs: how many run on a multiprocessor at a time
    shared: bytes of shared memory per block; an upper bound over those calls
    """

    arch: int
    last_arch: int
    bytes: int
    stored: int
    width: int
    tile: int
    rows: int
    columns: int
    warps: int
    stages: int
    programs: int
    shared: int = 0

    def serves(self, arch: int, size: int, stored: int, width: int, rows: int) -> bool:
        """Whether this row is for calls like that one."""
        return (
            self.arch <= arch <= self.last_arch
            and size <= self.bytes
            and stored <= self.stored
            and width <= self.width
            and rows <= self.tile
        )


@cache
def configs() -> tuple[Config, ...]:
    """Every shipped configuration, in order of preference."""
    text = (files(__package__) / "configs.toml").read_text(encoding="utf-8")
    return tuple(Config(**row) for row in tomllib.loads(text)["attend"])


@cache
def config_for(arch: int, size: int, stored: int, width: int, rows: int, invariant: bool) -> Config | None:
    """The first configuration that serves such a call.

    arch: major * 10 + minor; size, stored: bytes of an element of q, and of the wider of K and V; width: padded
    rows: query rows per KV head of the longest sequence; under `invariant` a row's sums must not depend on its batch, so
        they are taken as many
    """
    wanted = _ANY if invariant else rows
    return next((row for row in configs() if row.serves(arch, size, stored, width, wanted)), None)


_ANY = 2**30


def padded(width: int) -> int:
    """The width of a tile for a head of this width: a power of two, at least 16."""
    return max(16, 1 << (width - 1).bit_length())
