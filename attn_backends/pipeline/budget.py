"""`Budget`: what a plan takes from a multiprocessor, line by line, beside what there is.

The registers of a consumer thread are counted from its tiles: scores, output, weights as an operand, queries where they
live there, and a rest that was fitted to what compiles without spills (docs/kernels/hopper.md). Accumulators in tensor
memory take none.
"""

from __future__ import annotations

from dataclasses import dataclass

from attn_backends.pipeline.chip import Chip
from attn_backends.pipeline.plan import Plan

WARPGROUP = 128  # threads
PRODUCER_REGISTERS = 24  # per thread, once the producer has handed the others over
GRANULE = 8  # registers change hands in steps of so many per thread
MOST_REGISTERS = 240  # per thread of a consumer; beyond, the assembler takes no part of it
REST = 32  # registers per thread for addresses, row statistics and counters
OVERHEAD = 1_024  # bytes of shared memory for barriers, tickets and what is handed to warps, with room


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One resource: what is taken and what there is, and the unit of both."""

    resource: str
    used: int
    limit: int
    unit: str

    @property
    def fits(self) -> bool:
        """Whether there is enough."""
        return self.used <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What `plan` takes from `chip`, per block of threads."""

    plan: Plan
    chip: Chip

    @property
    def tiles(self) -> dict[str, int]:
        """Bytes of shared memory by tile."""
        plan = self.plan
        query = plan.q_tiles * plan.rows * plan.head_dim * plan.bytes
        step = plan.keys * plan.head_dim * plan.bytes
        k_stages = plan.k_stages or plan.stages
        return {"Q": query, "K": k_stages * step, "V": plan.stages * step, "O": 0 if plan.shared_out else query}

    @property
    def shared(self) -> int:
        """Bytes of shared memory: an upper bound."""
        return sum(self.tiles.values()) + OVERHEAD

    @property
    def barriers(self) -> int:
        """Full and empty ones of every buffer of Q, K and V."""
        return 2 * (self.plan.q_tiles + self.plan.stages + (self.plan.k_stages or self.plan.stages))

    @property
    def threads(self) -> int:
        """Consumers, and the producer's warpgroup."""
        return (self.plan.q_tiles + 1) * WARPGROUP

    @property
    def registers(self) -> int:
        """Per thread of a consumer."""
        plan = self.plan
        scores, out = plan.rows * plan.keys // WARPGROUP, plan.rows * plan.head_dim // WARPGROUP
        accumulators = scores if self.chip.tensor_columns else scores + out
        operands = scores * plan.bytes // 4 + (out * plan.bytes // 4 if plan.q_registers else 0)
        return accumulators + operands + REST

    @property
    def registers_there(self) -> int:
        """Per thread of a consumer, when one block has the multiprocessor to itself."""
        left = self.chip.registers - WARPGROUP * PRODUCER_REGISTERS
        return min(MOST_REGISTERS, left // (self.plan.q_tiles * WARPGROUP) // GRANULE * GRANULE)

    @property
    def tensor_columns(self) -> int:
        """Columns of tensor memory: scores and output of every query tile."""
        return self.plan.q_tiles * (self.plan.s_stages * self.plan.keys + self.plan.head_dim)

    @property
    def lines(self) -> tuple[Line, ...]:
        """The table."""
        chip = self.chip
        found = [
            Line(resource="shared memory", used=self.shared, limit=chip.shared, unit="bytes per block"),
            Line(resource="registers", used=self.registers, limit=self.registers_there, unit="per consumer thread"),
            Line(resource="threads", used=self.threads, limit=chip.threads, unit="per multiprocessor"),
        ]
        if chip.tensor_columns:
            columns = Line(
                resource="tensor memory", used=self.tensor_columns, limit=chip.tensor_columns, unit="columns"
            )
            found.append(columns)
        return tuple(found)

    @property
    def fits(self) -> bool:
        """Whether all of it is there."""
        return all(line.fits for line in self.lines)

    @property
    def resident(self) -> int:
        """Blocks of threads that one multiprocessor holds at a time; 0 where not even one fits."""
        if not self.fits:
            return 0
        consumers = self.plan.q_tiles * WARPGROUP * min(self.registers_there, -(-self.registers // GRANULE) * GRANULE)
        taken = consumers + WARPGROUP * PRODUCER_REGISTERS
        limits = [self.chip.shared // self.shared, self.chip.threads // self.threads, self.chip.registers // taken]
        if self.chip.tensor_columns:
            limits.append(self.chip.tensor_columns // self.tensor_columns)
        return min(limits)
