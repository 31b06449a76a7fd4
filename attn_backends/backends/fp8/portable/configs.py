"""The shipped tiles as data (`configs.toml`), looked up by architecture and head width. Imports no torch."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One row; configs.toml has the words."""

    arch: int
    head_dim: int
    rows: int
    columns: int
    warps: int
    stages: int


@cache
def config_for(arch: int, head_dim: int) -> Config:
    """The row for a compute capability (major * 10 + minor, 0 without a GPU). Raises LookupError where there is none."""
    rows = [row for row in configs() if row.head_dim == head_dim and row.arch <= arch]
    if not rows:
        raise LookupError(f"no tiles for heads of {head_dim}: the manifest refuses such calls")
    return max(rows, key=lambda row: row.arch)


@cache
def configs() -> tuple[Config, ...]:
    """Every shipped row."""
    text = (files(__package__) / "configs.toml").read_text(encoding="utf-8")
    return tuple(Config(**row) for row in tomllib.loads(text)["forward"])
