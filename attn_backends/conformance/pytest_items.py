"""What the two pytest doors share: the items of a backend, running one, and the words of a failure. Imports torch when it runs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from attn_backends.conformance.gap_errors import CHECK
from attn_backends.conformance.item import Item
from attn_backends.conformance.outcome import Outcome, Result
from attn_backends.conformance.report.plain import clean
from attn_backends.conformance.report.replay import replay
from attn_backends.conformance.report.verdict import message_of

if TYPE_CHECKING:
    from attn_backends.conformance.plan import Plan


class UnderclaimWarning(UserWarning):
    """Something that a backend does right and does not declare."""


class TargetError(Exception):
    """What should be tested cannot be, which is no pass; the message says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is tested: a backend, at a level, on a device (cpu, cuda; empty for the usual one)."""

    backend: str
    level: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    plan: Plan
    device: str  # as torch calls it


@cache
def _planned(target: Target) -> _Planned:
    from attn_backends.conformance.devices import real_device, torch_word, usual_device
    from attn_backends.conformance.plan import plan
    from attn_backends.errors import AttnBackendsError
    from attn_backends.registry.registry import default_registry

    try:
        manifest = default_registry().snapshot().get(target.backend)
        device = real_device(target.device) if target.device else usual_device(manifest)
        made = plan(manifest, target.level, device)
    except (AttnBackendsError, ValueError) as error:
        raise TargetError(str(error)) from None
    if not made.items:
        why = "; ".join(made.notes) or "no box of its manifest is for this device"
        raise TargetError(f"{target.backend}: nothing to run on {device.describe()}: {why}")
    return _Planned(plan=made, device=torch_word(device.kind))


def items_of(target: Target) -> tuple[Item, ...]:
    """Every item, in the order of the plan. Raises TargetError."""
    return _planned(target).plan.items


def uncovered(target: Target) -> tuple[str, ...]:
    """What the backend declares and no item shows, as `axis=value`; each fails. Raises TargetError."""
    return tuple(f"{axis}={value}" for axis, value in _planned(target).plan.uncovered)


def forget() -> None:
    """Plan anew; for tests."""
    _planned.cache_clear()


def judge(target: Target, item: Item) -> None:
    """Run one item; a bad outcome or a gap that is closed fails the test, NOT_RUN skips it, UNDERCLAIM warns."""
    import pytest

    from attn_backends.conformance.engine import run_item

    result: Result = run_item(target.backend, item, _planned(target).device)
    closed_gap = item.check == CHECK and result.outcome is Outcome.UNDERCLAIM
    if result.outcome.bad or closed_gap:
        pytest.fail(failure_text(target, result), pytrace=False)
    if result.outcome is Outcome.NOT_RUN:
        pytest.skip(clean(result.message))
    if result.outcome is Outcome.UNDERCLAIM:
        warnings.warn(UnderclaimWarning(f"{result.id}: {clean(message_of(result))}"), stacklevel=2)


def failure_text(target: Target, result: Result) -> str:
    """Outcome, clauses with their promises, what was seen, and how to run it again."""
    from attn_backends.conformance.spec import clauses

    known: dict[str, Any] = clauses()
    message = "the gap is closed: delete its entry" if result.outcome is Outcome.UNDERCLAIM else clean(result.message)
    promises = [str(known.get(name, name)) for name in result.clauses]
    command = replay(target.backend, result.id, level=target.level, kind=_planned(target).device)
    return "\n".join(
        [f"{result.outcome} {result.id}", message, *(f"  {line}" for line in promises), f"replay: {command}"]
    )  # fmt: skip
