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


class NothingToRunError(Exception):
    """A backend for which the suite has no item here: that is no pass."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is tested: a backend, at a level, on a real device (cpu, cuda)."""

    backend: str
    level: str
    device: str


@cache
def _plan(target: Target) -> Plan:
    from attn_backends.conformance.plan import plan
    from attn_backends.device import Device
    from attn_backends.registry.registry import default_registry

    made = plan(default_registry().snapshot().get(target.backend), target.level, Device.of(target.device))
    if not made.items:
        why = "; ".join(map(str, made.notes)) or "no box of its manifest is for this device"
        raise NothingToRunError(f"{target.backend}: nothing to run on {target.device}: {why}")
    return made


def items_of(target: Target) -> tuple[Item, ...]:
    """Every item, in the order of the plan. Raises NothingToRunError, UnknownBackendError."""
    return _plan(target).items


def uncovered(target: Target) -> tuple[str, ...]:
    """What the backend declares and no item shows, as `axis=value`; each fails."""
    return tuple(f"{axis}={value}" for axis, value in _plan(target).uncovered)


def forget() -> None:
    """Plan anew; for tests."""
    _plan.cache_clear()


def judge(target: Target, item: Item) -> None:
    """Run one item; a bad outcome or a gap that is closed fails the test, NOT_RUN skips it, UNDERCLAIM warns."""
    import pytest

    from attn_backends.conformance.engine import run_item

    result: Result = run_item(target.backend, item, target.device)
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
    command = replay(target.backend, result.id, level=target.level, kind=target.device)
    return "\n".join(
        [f"{result.outcome} {result.id}", message, *(f"  {line}" for line in promises), f"replay: {command}"]
    )  # fmt: skip
