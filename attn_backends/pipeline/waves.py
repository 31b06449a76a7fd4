"""How many blocks of query tiles a call makes, and how evenly they fill the device: the cost of few and of long blocks."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heapreplace

from attn_backends.pipeline.budget import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Waves:
    """tickets: blocks of query tiles; slots: how many run at a time; steps of the busiest slot and of all, in keys."""

    tickets: int
    slots: int
    longest: int
    total: int

    @property
    def waves(self) -> float:
        """Rounds of the device, the last one in part."""
        return self.tickets / self.slots

    @property
    def balance(self) -> float:
        """Share of the device that works until the busiest slot is done."""
        return self.total / (self.longest * self.slots)


def waves(budget: Budget, *, seq: int, heads: int) -> Waves:
    """Of a call with `heads` heads over all sequences, each of `seq` queries and keys; the longest tickets first."""
    plan = budget.plan
    rows = plan.rows * plan.q_tiles
    per_head = [
        -(-(min((block + 1) * rows, seq) if plan.causal else seq) // plan.keys) for block in range(-(-seq // rows))
    ]
    slots = max(1, budget.resident) * budget.chip.multiprocessors
    lengths = sorted(per_head * heads, reverse=True)
    loads = [0] * slots
    heapify(loads)
    for length in lengths:
        heapreplace(loads, loads[0] + length)
    return Waves(tickets=len(lengths), slots=slots, longest=max(loads), total=sum(lengths))
