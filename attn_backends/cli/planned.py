"""`Plan`: every call that a model's config implies, decided on every device. Data; drawing it is `plan_view`'s."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attn_backends.planning import ConfigError, LayerKind, PhaseRequest, layer_kinds, load_config, requests
from attn_backends.selector.explain import decide
from attn_backends.selector.log.line import ELSEWHERE

if TYPE_CHECKING:
    from attn_backends.selector.decision import Candidate, Decision
    from attn_backends.selector.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """One phase of one kind of layer, and its decision on each device, in the order in which they were asked for."""

    call: PhaseRequest
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedKind:
    """One kind of layer and its calls."""

    kind: LayerKind
    calls: tuple[PlannedCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A model on some devices."""

    config: str
    kinds: tuple[PlannedKind, ...]

    @property
    def decisions(self) -> Iterator[Decision]:
        """Every decision."""
        return (decision for kind in self.kinds for call in kind.calls for decision in call.decisions)

    @property
    def served(self) -> bool:
        """Whether every call has a backend on every device."""
        return all(decision.backend is not None for decision in self.decisions)

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        return {"config": self.config, "served": self.served, "kinds": [_kind_record(kind) for kind in self.kinds]}


def plan_config(
    config: str,
    devices: Sequence[str | None],
    *,
    phases: Sequence[str] = (),
    sizes: dict[str, Any],
    policy: Policy | None = None,
) -> Plan:
    """Read a config, derive its calls, decide each on each device. Raises ConfigError, RequestError."""
    kinds = []
    for kind in _kinds_of(config):
        calls = [call for call in requests(kind, **sizes) if not phases or call.phase in phases]
        planned = (
            PlannedCall(
                call=call, decisions=tuple(decide(call.request, device=name, policy=policy) for name in devices)
            )
            for call in calls
        )
        kinds.append(PlannedKind(kind=kind, calls=tuple(planned)))
    return Plan(config=config, kinds=tuple(kinds))


def _kinds_of(config: str) -> tuple[LayerKind, ...]:
    """The kinds of a config; what is wrong with it names the file."""
    read = load_config(config)
    try:
        return layer_kinds(read)
    except ConfigError as error:
        file = Path(config, "config.json") if Path(config).is_dir() else Path(config)
        raise error.in_file(str(file)) from None


def missed(decision: Decision) -> list[Candidate]:
    """The rejected backends that matter: those that would have gone first, and are made for this kind of device.

    With no winner, every backend of this device. In the order of priority where it is known.
    """
    priorities = _priorities(decision)
    floor = priorities.get(decision.backend or "", -1) if decision.chosen is not None else -(10**9)
    found = [
        candidate
        for candidate in decision.candidates
        if candidate.status == "rejected"
        and priorities.get(candidate.name, 0) >= floor
        and not any(reason.axis in ELSEWHERE for reason in candidate.reasons)
    ]
    return sorted(found, key=lambda candidate: (-priorities.get(candidate.name, 0), candidate.name))


def _priorities(decision: Decision) -> dict[str, int]:
    from attn_backends.registry.registry import default_registry

    registry = decision.origin or default_registry()
    return {manifest.name: manifest.priority for manifest in registry.snapshot().manifests}


def _kind_record(planned: PlannedKind) -> dict[str, Any]:
    return {**dataclasses.asdict(planned.kind), "calls": [_call_record(call) for call in planned.calls]}


def _call_record(planned: PlannedCall) -> dict[str, Any]:
    return {
        "phase": planned.call.phase,
        "request": planned.call.request.to_json(),
        "decisions": [_decision_record(decision) for decision in planned.decisions],
    }


def _decision_record(decision: Decision) -> dict[str, Any]:
    return {
        "id": decision.id, "device": decision.device.name, "backend": decision.backend, "source": decision.source,
        "tier": decision.tier, "candidates": [candidate.to_json() for candidate in decision.candidates],
        "nearest": [relaxation.to_json() for relaxation in decision.nearest],
        "missed": [candidate.name for candidate in missed(decision)],
    }  # fmt: skip
