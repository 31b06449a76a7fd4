"""`Plan`: one pipeline as numbers. What it costs is in `budget.py` and `timeline.py`."""

from __future__ import annotations

from dataclasses import dataclass

COUNTS = {1: "single", 2: "dual", 3: "triple"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One pipeline.

    rows, q_tiles   queries per query tile, and how many of those a block of threads works on, a warpgroup each
    keys, stages    keys per step, and how many steps of K and of V are kept
    k_stages        how many of K, where that differs; 0 where it does not
    s_stages        2 where the next scores are computed while the last ones are weighed and multiplied
    causal          whether some tiles are masked, which takes registers
    shared_out      the output leaves through Q's memory
    q_registers     queries live in registers
    bytes           of an element of q, k and v
    """

    head_dim: int
    rows: int = 64
    q_tiles: int = 2
    keys: int = 128
    stages: int = 2
    k_stages: int = 0
    s_stages: int = 2
    causal: bool = False
    shared_out: bool = False
    q_registers: bool = False
    bytes: int = 2

    @property
    def name(self) -> str:
        """Which schedule it is, by what it has several of."""
        if self.q_tiles == self.s_stages == 1:
            return "serial"
        return f"{COUNTS.get(self.q_tiles, self.q_tiles)} Q, {COUNTS.get(self.s_stages, self.s_stages)} S"
