"""The shipped pipelines as data (`configs.toml`), looked up by head width and mask. Imports no torch."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

ROWS = 64  # queries of one query tile: what a warpgroup multiplies at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One pipeline; configs.toml has the words."""

    head_dim: int
    causal: bool
    q_tiles: int
    keys: int
    stages: int
    two_level: bool
    q_registers: bool = False
    ping_pong: bool = False
    dynamic: bool = False
    parts: int = 0
    late_wait: bool = False
    sweep_bytes: int = 0
    registers: int
    max_registers: int


@cache
def configs() -> tuple[Config, ...]:
    """Every shipped pipeline."""
    text = (files(__package__) / "configs.toml").read_text(encoding="utf-8")
    return tuple(Config(**row) for row in tomllib.loads(text)["forward"])


@cache
def config_for(head_dim: int, causal: bool) -> Config | None:
    """The pipeline of a head width and mask; None where there is none."""
    return next((row for row in configs() if (row.head_dim, row.causal) == (head_dim, causal)), None)
