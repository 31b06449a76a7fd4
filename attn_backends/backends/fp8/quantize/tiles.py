"""How the pass is cut into programs, as data (`tiles.toml`). Imports no torch."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """One row; tiles.toml has the words."""

    head_dim: int
    arch: int = 0
    blocks: int
    warps: int
    stages: int
    ahead: bool
    registers: int = 0
    part: int = 128


@cache
def tiles_for(arch: int, head_dim: int) -> Tiles:
    """The row for a compute capability (major * 10 + minor, 0 without a GPU). Raises LookupError where there is none."""
    rows = [row for row in shipped() if row.head_dim == head_dim and row.arch <= arch]
    if not rows:
        raise LookupError(f"no tiles for heads of {head_dim}: the manifest refuses such calls")
    return max(rows, key=lambda row: row.arch)


@cache
def shipped() -> tuple[Tiles, ...]:
    """Every shipped row."""
    text = (files(__package__) / "tiles.toml").read_text(encoding="utf-8")
    return tuple(Tiles(**row) for row in tomllib.loads(text)["tiles"])
