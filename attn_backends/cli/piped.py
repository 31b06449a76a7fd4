"""What `attn-backends pipeline` shows of each schedule, as data: budget, timeline, the cost of a shorter tile, waves."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from attn_backends.pipeline.budget import Budget
from attn_backends.pipeline.chip import CHIPS
from attn_backends.pipeline.plan import Plan
from attn_backends.pipeline.timeline import UNITS, Timeline, timeline
from attn_backends.pipeline.waves import Waves, waves


@dataclass(frozen=True, slots=True, kw_only=True)
class Piped:
    """One schedule.

    uneven: the same where all but the last query tile are one step shorter, as under a diagonal; None where that cannot be
    waves:  of the call that was named, if one was
    """

    plan: Plan
    budget: Budget
    timeline: Timeline
    uneven: Timeline | None
    waves: Waves | None

    def to_json(self) -> dict[str, Any]:
        """The same, as JSON takes it."""
        return {
            "schedule": self.plan.name,
            "fits": self.budget.fits,
            "budget": {line.resource: {"used": line.used, "limit": line.limit} for line in self.budget.lines},
            "tiles": self.budget.tiles,
            "barriers": self.budget.barriers,
            "resident": self.budget.resident,
            "overlap": {"possible": self.timeline.bound, "modelled": self.timeline.overlap},
            "busy": {unit: self.timeline.busy(unit) / self.timeline.clocks for unit in UNITS},
            "uneven": None if self.uneven is None else self.uneven.rate,
            "waves": None if self.waves is None else {"blocks": self.waves.tickets, "balance": self.waves.balance},
        }


def piped(
    *,
    head_dim: int,
    element_bytes: int,
    chip: str,
    q_tiles: int | None,
    s_stages: int | None,
    keys: int | None,
    stages: int,
    q_registers: bool,
    shared_out: bool,
    causal: bool,
    steps: int,
    seq: int | None,
    heads: int,
) -> list[Piped]:
    """The schedules that were asked for, the simplest first."""
    chosen = CHIPS[chip]
    found = []
    for tiles, scores in product([q_tiles] if q_tiles else [1, 2], [s_stages] if s_stages else [1, 2]):
        plan = Plan(
            head_dim=head_dim, rows=chosen.rows, q_tiles=tiles, keys=keys or (128 if head_dim <= 128 else 64),
            stages=stages, s_stages=scores, causal=causal, q_registers=q_registers, shared_out=shared_out,
            bytes=element_bytes,
        )  # fmt: skip
        budget = Budget(plan=plan, chip=chosen)
        found.append(
            Piped(
                plan=plan,
                budget=budget,
                timeline=timeline(plan, chosen, (steps,) * tiles),
                uneven=timeline(plan, chosen, (steps - 1,) * (tiles - 1) + (steps,)) if tiles > 1 < steps else None,
                waves=waves(budget, seq=seq, heads=heads) if seq else None,
            )
        )
    return found
