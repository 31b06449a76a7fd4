"""Tile sizes as data (`configs.toml`), looked up by direction, architecture, element size and width. Imports no torch."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Tile sizes and launch options of one kernel; `rows` of queries, `columns` of keys."""

    arch: int
    bytes: int
    width: int
    rows: int
    columns: int
    warps: int
    stages: int
    tma: bool = False
    split: bool = False  # dK and dV in two launches


@cache
def configs() -> dict[str, tuple[Config, ...]]:
    """Every shipped configuration by direction (`forward`, `keys`, `queries`), in order of preference."""
    text = (files(__package__) / "configs.toml").read_text(encoding="utf-8")
    return {direction: tuple(Config(**row) for row in rows) for direction, rows in tomllib.loads(text).items()}


@cache
def config_for(direction: str, arch: int, size: int, width: int) -> Config | None:
    """The first configuration that serves this architecture (major * 10 + minor), element size and padded width."""
    for config in configs()[direction]:
        if arch >= config.arch and size <= config.bytes and width <= config.width:
            return config
    return None


def padded(width: int) -> int:
    """The width of a tile for a head of this width: a power of two, at least 16."""
    return max(16, 1 << (width - 1).bit_length())
