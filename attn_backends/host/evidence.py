"""How strong the evidence of a decision is: registered < selected < executed < profiled. And what is written of it.

`Profile` is what `profile()` found; what was found stays known for the life of the process, beside the ledger. Where a
decision log is configured, both are written beside it, so that `attn-backends log why` can say the level.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attn_backends.host.ledger import LaunchRecord, launches
from attn_backends.registry.knobs import current_knobs
from attn_backends.registry.telling import tell
from attn_backends.selector.log.evidence import write_evidence

if TYPE_CHECKING:
    from attn_backends.host.attribution import Use

_NOBODY = LaunchRecord(id="", backend="", launches=0, errors=0, conversions={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel under one decision: how often it ran, how often of that in replays, and for how long in all."""

    name: str
    device: str  # gpu | cpu, where the operators are the kernels
    count: int
    replayed: int
    us: float

    def to_json(self) -> dict[str, Any]:
        """Plain values; microseconds to the nanosecond."""
        return {
            "name": self.name, "device": self.device, "count": self.count, "replayed": self.replayed,
            "us": round(self.us, 3),
        }  # fmt: skip


@dataclass(slots=True, eq=False)
class Profile:
    """What ran inside `profile()`; empty until it ends.

    kernels: by decision id, the longest first. launches: what the ledger counted inside, by decision id. others: kernels
    of the device that belong to no decision.
    """

    kernels: dict[str, tuple[Kernel, ...]] = field(default_factory=dict)
    launches: dict[str, LaunchRecord] = field(default_factory=dict)
    others: tuple[Kernel, ...] = ()

    def device_us(self, identity: str) -> float:
        """Microseconds of all kernels of a decision."""
        return sum(kernel.us for kernel in self.kernels.get(identity, ()))

    def fill(self, uses: Iterable[Use], before: Mapping[str, LaunchRecord], after: Mapping[str, LaunchRecord]) -> None:
        """Take what a trace says, and the ledger before and after."""
        by_decision: dict[str | None, list[Use]] = {}
        for use in uses:
            by_decision.setdefault(use.id, []).append(use)
        self.others = _kernels(by_decision.pop(None, []))
        self.kernels = {identity: _kernels(own) for identity, own in by_decision.items() if identity is not None}
        since = {identity: record.since(before.get(identity, _NOBODY)) for identity, record in after.items()}
        self.launches = {identity: record for identity, record in since.items() if record.happened}

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        return {
            "decisions": {
                identity: {
                    **record.to_json(), "device_us": round(self.device_us(identity), 3),
                    "kernels": [kernel.to_json() for kernel in self.kernels.get(identity, ())],
                }
                for identity, record in self.launches.items()
            },
            "others": [kernel.to_json() for kernel in self.others],
        }  # fmt: skip


def _kernels(uses: Iterable[Use]) -> tuple[Kernel, ...]:
    by_name: dict[tuple[str, str], list[Use]] = {}
    for use in uses:
        by_name.setdefault((use.name, use.device), []).append(use)
    made = [
        Kernel(
            name=name, device=device, count=len(own), replayed=sum(use.replayed for use in own),
            us=sum(use.us for use in own),
        )
        for (name, device), own in by_name.items()
    ]  # fmt: skip
    return tuple(sorted(made, key=lambda kernel: (-kernel.us, kernel.name)))


_profiled: dict[str, tuple[Kernel, ...]] = {}  # of all profiles of this process, the last of each decision


def profiled(found: Profile) -> None:
    """Keep the kernels that a profile attributed."""
    _profiled.update(found.kernels)


def level(identity: str) -> str:
    """What this process knows of a decision: selected, executed or profiled."""
    record = launches().get(identity)
    if record is None or not record.executed:
        return "selected"
    return "profiled" if identity in _profiled else "executed"


def store_evidence() -> None:
    """Write ledger and kernels beside the decision log, where there is one. Never raises."""
    folder = current_knobs().log
    if not folder:
        return
    records = [
        {
            **record.to_json(), "level": level(identity),
            "kernels": [kernel.to_json() for kernel in _profiled.get(identity, ())],
        }
        for identity, record in launches().items()
    ]  # fmt: skip
    try:
        from attn_backends.selector.announce import log_folder

        write_evidence(log_folder(folder), records)
    except OSError as error:
        tell(logging.WARNING, "evidence: cannot be written: %s", error)
