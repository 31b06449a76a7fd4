"""What `attn-backends pipeline` shows of each schedule, as data: budget, timeline, the cost of a shorter tile, waves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from attn_backends.cli.failure import Failure
from attn_backends.cli.options import devices
from attn_backends.cli.question import device_name
from attn_backends.device import Device
from attn_backends.errors import RequestError
from attn_backends.pipeline.budget import Budget
from attn_backends.pipeline.chip import BLACKWELL, CHIPS, HOPPER, Chip
from attn_backends.pipeline.plan import Plan
from attn_backends.pipeline.timeline import UNITS, Timeline, timeline
from attn_backends.pipeline.waves import Waves, waves

ARCHS = {(9, 0): HOPPER, (10, 0): BLACKWELL}


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


def modelled_devices() -> list[str]:
    """Names of the known devices whose multiprocessor is modelled, as they are typed."""
    return [name for name in devices() if Device.pretend(name).arch in ARCHS]


def chip_of(name: str) -> Chip:
    """`hopper`, or a device (`h200`, `sm_100`, `here`) with as many multiprocessors as it has. Raises Failure."""
    if name.lower() in CHIPS:
        return CHIPS[name.lower()]
    try:
        device = Device.current() if device_name(name) is None else Device.pretend(name)
    except RequestError as error:
        raise _unmodelled(name) from error
    if device.kind != "cuda" or device.arch not in ARCHS:
        raise _unmodelled(device.describe())
    chip = ARCHS[device.arch]
    return replace(chip, multiprocessors=device.num_sms or chip.multiprocessors)


def _unmodelled(name: str) -> Failure:
    return Failure(
        f"--device: no pipeline is modelled of {name}", f"modelled are {', '.join((*CHIPS, *modelled_devices()))}"
    )


def piped(
    *,
    head_dim: int,
    element_bytes: int,
    chip: Chip,
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
    found = []
    for tiles, scores in product([q_tiles] if q_tiles else [1, 2], [s_stages] if s_stages else [1, 2]):
        plan = Plan(
            head_dim=head_dim, rows=chip.rows, q_tiles=tiles, keys=keys or (128 if head_dim <= 128 else 64),
            stages=stages, s_stages=scores, causal=causal, q_registers=q_registers, shared_out=shared_out,
            bytes=element_bytes,
        )  # fmt: skip
        budget = Budget(plan=plan, chip=chip)
        found.append(
            Piped(
                plan=plan,
                budget=budget,
                timeline=timeline(plan, chip, (steps,) * tiles),
                uneven=timeline(plan, chip, (steps - 1,) * (tiles - 1) + (steps,)) if tiles > 1 < steps else None,
                waves=waves(budget, seq=seq, heads=heads) if seq else None,
            )
        )
    return found
