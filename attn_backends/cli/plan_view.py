"""A plan on the screen: per kind of layer one table, phases down, devices across; below each winner whom it stands in for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attn_backends.cli.planned import Plan, PlannedCall, PlannedKind, missed
from attn_backends.cli.record_view import candidate_table
from attn_backends.cli.screen import BAD, GOOD, HEAD, NAME, QUIET, WARN, table, text
from attn_backends.selector.log.phrase import device_phrase, printable, request_phrase

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from attn_backends.selector.decision import Candidate, Decision

GROUPS = 2  # groups of backends named below a winner
CODES = 3  # reasons named for each group
Part = str | tuple[str, str]


def plan_view(plan: Plan, *, width: int, why: bool) -> Iterator[RenderableType]:
    """The parts, top to bottom."""
    layers, kinds = sum(planned.kind.count for planned in plan.kinds), len(plan.kinds)
    yield text(
        (printable(plan.config), NAME), f": {layers} attention layers of {kinds} kind{'s' if kinds != 1 else ''}"
    )
    for planned in plan.kinds:
        yield ""
        yield from _kind(planned, width)
        if why:
            yield from _reasons(planned)


def _kind(planned: PlannedKind, width: int) -> Iterator[RenderableType]:
    kind = planned.kind
    shared = _shared(planned.calls)
    yield text((kind.name, HEAD), f"  {kind.count} layer{'s' if kind.count != 1 else ''}  ", (" ".join(shared), QUIET))
    for note in kind.notes:
        yield text((f"note: {printable(note)}", QUIET))
    if planned.calls:
        yield ""
        yield _calls(planned, shared, width)
    else:
        yield text(("no call in this phase", QUIET))


def _shared(calls: Sequence[PlannedCall]) -> list[str]:
    """The words that the requests of all phases have in common."""
    words = [_words(call) for call in calls]
    return [word for word in words[0] if all(word in other for other in words[1:])] if len(words) > 1 else []


def _words(call: PlannedCall) -> list[str]:
    return request_phrase(call.call.request.to_json()).split(" ")


def _calls(planned: PlannedKind, shared: list[str], width: int) -> Table:
    decisions = planned.calls[0].decisions
    made = table("phase", "request", *(device_phrase(decision.device.to_json()) for decision in decisions))
    made.columns[0].no_wrap = True
    made.columns[1].max_width = max(20, (width - 12) // (len(decisions) + 1))
    for call in planned.calls:
        own = [word for word in _words(call) if word not in shared and word != call.call.request.phase]
        made.add_row(call.call.phase, text((" ".join(own), QUIET)), *map(_cell, call.decisions))
    return made


def _cell(decision: Decision) -> Text:
    """The winner, then those that would have gone first, by what they lack."""
    groups: dict[str, list[str]] = {}
    for candidate in missed(decision):
        groups.setdefault(_codes(candidate), []).append(candidate.name)
    parts: list[Part] = [winner(decision)]
    parts += [(f"\nnot {', '.join(names)}: {codes}", QUIET) for codes, names in list(groups.items())[:GROUPS]]
    if left := sum(map(len, list(groups.values())[GROUPS:])):
        parts.append((f"\nnor {left} more", QUIET))
    return text(*parts)


def winner(decision: Decision) -> Part:
    """The chosen backend, and what is remarkable about it."""
    if decision.backend is None:
        return ("none", BAD)
    if decision.tier == "reference":
        return (f"{decision.backend} (reference)", WARN)
    by = "" if decision.source == "priority" else f", by {decision.source}"
    return (f"{decision.backend}{by}", GOOD)


def _codes(candidate: Candidate) -> str:
    codes = list(dict.fromkeys(reason.code for reason in candidate.reasons))
    return ", ".join(codes[:CODES]) + (f", {len(codes) - CODES} more" if len(codes) > CODES else "")


def _reasons(planned: PlannedKind) -> Iterator[RenderableType]:
    for call in planned.calls:
        for decision in call.decisions:
            yield ""
            yield text((f"{call.call.phase} on {device_phrase(decision.device.to_json())}", NAME))
            yield candidate_table(decision.to_json(), every=True)
