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

PHASE, GAP, LEAST = 11, 3, 20  # characters: the column of the phase, between columns, what a request has at least
GROUPS = 2  # groups of backends named below a winner
CODES = 3  # reasons named for each group
USUAL = ("cost_model", "priority")  # what decides where nobody steers and nothing was measured
Part = str | tuple[str, str]


def plan_view(plan: Plan, *, width: int, why: bool) -> Iterator[RenderableType]:
    """The parts, top to bottom."""
    layers, kinds = sum(planned.kind.count for planned in plan.kinds), len(plan.kinds)
    yield text(
        (printable(plan.config), NAME), f": {layers} attention layers of {kinds} kind{'s' if kinds != 1 else ''}"
    )
    everywhere = _noted_everywhere(plan)
    yield from map(_note, everywhere)
    for planned in plan.kinds:
        yield ""
        yield from _kind(planned, width, everywhere)
        if why:
            yield from _reasons(planned)


def _noted_everywhere(plan: Plan) -> tuple[str, ...]:
    """The notes that stand under every kind; with a single kind they stand there."""
    first, *others = (planned.kind.notes for planned in plan.kinds)
    return tuple(note for note in first if all(note in notes for notes in others)) if others else ()


def _note(note: str) -> Text:
    return text((f"note: {printable(note)}", QUIET))


def _kind(planned: PlannedKind, width: int, noted: Sequence[str]) -> Iterator[RenderableType]:
    kind = planned.kind
    shared = _shared(planned.calls)
    yield text((kind.name, HEAD), f"  {kind.count} layer{'s' if kind.count != 1 else ''}  ", (" ".join(shared), QUIET))
    yield from (_note(note) for note in kind.notes if note not in noted)
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
    """Devices side by side; below each other where the screen is too narrow for their longest words."""
    devices = [_device(decision) for decision in planned.calls[0].decisions]
    cells = [[_cell(decision) for decision in call.decisions] for call in planned.calls]
    own = [_own(call, shared) for call in planned.calls]
    needs = [max(map(_longest_word, [device, *column])) for device, *column in zip(devices, *cells, strict=True)]
    left = width - PHASE - sum(need + GAP for need in needs)
    if len(devices) > 1 and left < LEAST:
        return _stacked(planned, own, devices, cells)
    made = table("phase", "request", *(device.plain for device in devices))
    made.columns[0].no_wrap = True
    made.columns[1].max_width = max(LEAST, min(left, (width - PHASE) // (len(devices) + 1)))
    for column, need in zip(made.columns[2:], needs, strict=True):
        column.min_width = min(need, max(LEAST, width - PHASE - GAP - LEAST))
    for call, request, row in zip(planned.calls, own, cells, strict=True):
        made.add_row(call.call.phase, request, *row)
    return made


def _stacked(
    planned: PlannedKind, own: Sequence[Text], devices: Sequence[Text], cells: Sequence[Sequence[Text]]
) -> Table:
    """One row per phase and device; phase and request stand in the first of a phase."""
    made = table("phase", "request", "device", "backend")
    made.columns[0].no_wrap = made.columns[2].no_wrap = True
    made.columns[1].max_width = LEAST
    for call, request, row in zip(planned.calls, own, cells, strict=True):
        said = [(call.call.phase, request)] + [("", text())] * (len(row) - 1)
        for (phase, asked), device, cell in zip(said, devices, row, strict=True):
            made.add_row(phase, asked, device, cell)
    return made


def _device(decision: Decision) -> Text:
    return text(device_phrase(decision.device.to_json()))


def _own(call: PlannedCall, shared: Sequence[str]) -> Text:
    """What the request of a phase says beyond what all say."""
    words = [word for word in _words(call) if word not in shared and word != call.call.request.phase]
    return text((" ".join(words), QUIET))


def _longest_word(cell: Text) -> int:
    return max(map(len, cell.plain.split()), default=0)


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
    by = "" if decision.source in USUAL else f", by {decision.source}"
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
