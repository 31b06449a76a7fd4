"""The shipped pipelines as data (`configs.toml`), looked up by head width, mask and length. Imports no torch."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from attn_backends.pipeline.plan import Plan

ROWS = 64  # queries of one query tile: what a warpgroup multiplies at once
BLOCK = 128  # tokens that share a scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One pipeline; configs.toml has the words."""

    head_dim: int
    causal: bool
    longest: int = 0
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

    @property
    def plan(self) -> Plan:
        """What the budget model calls it."""
        return Plan(
            head_dim=self.head_dim,
            rows=ROWS,
            q_tiles=self.q_tiles,
            keys=self.keys,
            stages=self.stages,
            causal=self.causal,
            q_registers=self.q_registers,
            bytes=1,
        )


@cache
def configs() -> tuple[Config, ...]:
    """Every shipped pipeline."""
    text = (files(__package__) / "configs.toml").read_text(encoding="utf-8")
    return tuple(Config(**row) for row in tomllib.loads(text)["forward"])


@cache
def config_for(head_dim: int, causal: bool, seq_k: int) -> Config | None:
    """The pipeline of a head width for so many keys; None where there is none."""
    return next(
        (
            row
            for row in configs()
            if row.head_dim == head_dim and row.causal == causal and seq_k <= (row.longest or seq_k)
        ),
        None,
    )
