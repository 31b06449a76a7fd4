"""A decision's record on the screen: the winner, every candidate with its reasons, what would make others fit.

It reads the record (schema `attn.decision/1`), live or out of a log, with the wording of the log's own text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attn_backends.cli.screen import BAD, CODE, HEAD, NAME, QUIET, STATUS_STYLES, WARN, facts, table, text
from attn_backends.quantization import AXES
from attn_backends.selector.log.line import (
    ELSEWHERE,
    SOURCES,
    candidates_of,
    changes_phrase,
    notes,
    reasons_of,
    winner_of,
)
from attn_backends.selector.log.phrase import device_phrase, pairs_phrase, printable, request_phrase, word

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

Json = Mapping[str, Any]
FEW = 2  # reasons per backend, unless all are asked for
NEAREST = 3  # relaxations, unless all are asked for
OUTRANKED = "outranked"


def record_view(record: Json, *, more: Sequence[tuple[str, str | Text]], every: bool) -> Iterator[RenderableType]:
    """The parts, top to bottom; `more` are further lines of facts, `every` shows all reasons with their sources."""
    yield winner_panel(record)
    yield facts([*_inputs(record), *more])
    yield ""
    yield candidate_table(record, every=every)
    if record.get("nearest"):
        yield ""
        yield text(("would fit after", HEAD))
        yield from _nearest(record, every=every)


def winner_panel(record: Json) -> Panel:
    """Who serves it and by what; red where nobody does."""
    from rich import box
    from rich.panel import Panel

    winner = winner_of(record)
    body, style = (_nobody(record), "red") if winner is None else (_winner(record, winner), _tier_style(winner))
    return Panel(
        body,
        box=box.ROUNDED,
        border_style=style,
        subtitle=text((f"id {record.get('id')}", QUIET)),
        subtitle_align="right",
    )


def candidate_table(record: Json, *, every: bool) -> Table:
    """Every backend, best first: rank, status, reasons."""
    made = table("#", "backend", "status", "why")
    made.columns[1].no_wrap = True
    for one in candidates_of(record):
        status = str(one.get("status"))
        style = STATUS_STYLES.get(status, "")
        rank = "-" if one.get("rank") is None else str(one["rank"])
        name = text((word(one.get("name")), style), (f" {word(one.get('version'))}" if every else "", QUIET))
        made.add_row(rank, name, text((status, style)), _story(one, every=every))
    return made


def _nearest(record: Json, *, every: bool) -> Iterator[RenderableType]:
    """The smallest change per rejected backend, the smallest first."""
    found = sorted(record["nearest"], key=_effort)
    shown = found if every else [one for one in found if _effort(one)[0] == 0][:NEAREST] or found[:NEAREST]
    yield facts([(f"  {word(one.get('backend'))}", printable(changes_phrase(one))) for one in shown])
    if len(found) > len(shown):
        yield text((f"  and {len(found) - len(shown)} more backends (--all-reasons)", QUIET))


def reason_text(reason: Json, *, every: bool) -> Text:
    """Code, then what was asked and what is declared; with `every`, the hint and where that is written."""
    code, axis = word(reason.get("code")), word(reason.get("axis"))
    if code == OUTRANKED:
        return text((printable(str(reason.get("message"))), QUIET))
    message = "\n".join(map(printable, str(reason.get("message") or "").splitlines()))
    said = message.removeprefix(f"{axis}: ").removeprefix(f"{code} ")
    parts: list[str | tuple[str, str]] = [(code, CODE), ": ", said]
    if every and reason.get("hint"):
        parts.append((f" ({word(reason['hint'])})", "italic"))
    if every and reason.get("source"):
        parts.append((f"  <- {word(reason['source'])}", QUIET))
    return text(*parts)


def only_reference(record: Json) -> bool:
    """Whether the reference serves the request because nothing better fits."""
    fitting = [one for one in record.get("candidates", ()) if one.get("status") != "rejected"]
    return bool(fitting) and all(one.get("tier") == "reference" for one in fitting)


def _winner(record: Json, winner: Json) -> Text:
    source = str(record.get("source"))
    parts: list[str | tuple[str, str]] = [
        (word(winner.get("name")), STATUS_STYLES["selected"]), f" {word(winner.get('version'))}  ",
        (f"{word(winner.get('tier'))}, {word(winner.get('numerics'))}", QUIET),
        "\nby ", (source, NAME), f": {SOURCES[source]}" if source in SOURCES else "",
    ]  # fmt: skip
    if record.get("downcast"):
        parts.append((f"\nruns in {word(record['downcast'])}, not in the request's dtype", WARN))
    if only_reference(record):
        parts.append(("\nonly the reference fits: right, and slow", WARN))
    return text(*parts)


def _nobody(record: Json) -> Text:
    forced = record.get("forced")
    if not forced:
        reasons = [reason for one in record.get("candidates", ()) for reason in reasons_of(one)]
        hint = next((reason["hint"] for reason in reasons if reason.get("code") in AXES and reason.get("hint")), None)
        more: list[str | tuple[str, str]] = [("\nhint: ", NAME), word(hint)] if hint else []
        return text(("no backend", BAD), "\nno registered backend fits this request; below is why", *more)
    said = f"\n{word(forced['name'])} was chosen by name and cannot serve this request; it is never swapped"
    candidates: list[Json] = [one for one in record.get("candidates", ()) if one.get("name") == forced["name"]]
    return text(("no backend", BAD), said, *(line for one in candidates for line in _against(one)))


def _against(candidate: Json) -> Iterator[str | Text | tuple[str, str]]:
    """Every reason against a backend on a line of its own, with what to do about it below."""
    for reason in reasons_of(candidate):
        yield "\n"
        yield reason_text(reason, every=False)
        if reason.get("hint"):
            yield ("\n  hint: ", NAME)
            yield word(reason["hint"])


def _tier_style(winner: Json) -> str:
    return "yellow" if winner.get("tier") == "reference" else "green"


def _inputs(record: Json) -> Iterator[tuple[str, str | Text]]:
    yield "request", request_phrase(record.get("request", {}))
    device = record.get("device", {})
    yield "device", device_phrase(device) + (" (pretended)" if device.get("pretended") else "")
    if record.get("policy"):
        yield "policy", pairs_phrase(record["policy"])


def _story(candidate: Json, *, every: bool) -> Text:
    from rich.text import Text

    reasons = reasons_of(candidate)
    shown = reasons if every else reasons[:FEW]
    lines = [reason_text(reason, every=every) for reason in shown]
    if len(reasons) > len(shown):
        lines.append(text((f"and {len(reasons) - len(shown)} more (--all-reasons)", QUIET)))
    if every or candidate.get("status") == "selected":
        lines += [text((note, QUIET)) for note in notes(candidate)]
    return Text("\n").join(lines)


def _effort(relaxation: Json) -> tuple[int, int, str]:
    changes = relaxation.get("changes", ())
    elsewhere = any(one.get("axis") in ELSEWHERE for one in changes)  # a change of hardware helps nobody; it goes last
    return int(elsewhere), len(changes), str(relaxation.get("backend"))
