"""`report.md`: the scorecard for a pull request. The first line is the headline; SILENT_WRONG stands before all else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from attn_backends.conformance.outcome import Outcome, Result
from attn_backends.conformance.record import RunRecord
from attn_backends.conformance.report.clauses import clause_rows, most_failed
from attn_backends.conformance.report.headline import (
    device_arch,
    device_name,
    environment_words,
    headline,
    not_run_places,
    verdict_words,
)
from attn_backends.conformance.report.plain import clean, first_line
from attn_backends.conformance.report.ratios import ratio_rows, ratio_text
from attn_backends.conformance.report.replay import replay_command
from attn_backends.conformance.report.verdict import failing, message_of, warnings

MOST = 50  # failing items written out; the counts are always of all
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&])")
_SPECIAL_IN_LINE = re.compile(r"([\\`*\[\]<>&])")  # outside of tables; `_` inside a word and `|` mean nothing there


def render_markdown(record: RunRecord) -> str:
    """The page as text, GitHub's Markdown."""
    return "\n\n".join(part for part in _parts(record) if part) + "\n"


def escaped(text: str) -> str:
    """Text of anybody as text of Markdown: no markup, no HTML, one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(clean(text).split()))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown already."""
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _parts(record: RunRecord) -> Iterator[str]:
    yield _SPECIAL_IN_LINE.sub(r"\\\1", " ".join(clean(headline(record)).split()))
    if record.errors:
        yield "## Errors\n\n" + "\n".join(f"- {escaped(note)}" for note in record.errors)
    yield _most_failed(record)
    yield _failing(record)
    yield _outcomes(record)
    yield _volume(record)
    yield _clauses(record)
    yield _ratios(record)
    yield _warnings(record)
    yield _gaps(record)
    if record.remarks:
        yield "## Notes\n\n" + "\n".join(f"- {escaped(note)}" for note in record.remarks)
    yield _facts(record)


def _most_failed(record: RunRecord) -> str:
    rows = [f"- {row.id}: {escaped(row.title)}: {row.failed:,} of {row.total:,} items" for row in most_failed(record)]
    return "## Clauses that fail most\n\n" + "\n".join(rows) if rows else ""


def _failing(record: RunRecord) -> str:
    bad = failing(record)
    if not bad:
        return ""
    parts = []
    for outcome in dict.fromkeys(result.outcome for result in bad):
        of_it = [result for result in bad if result.outcome is outcome]
        shown = [_item(record, result) for result in of_it[:MOST]]
        more = [f"... and {len(of_it) - MOST:,} more, in report.json."] if len(of_it) > MOST else []
        parts.append("\n\n".join([f"## {outcome} ({len(of_it):,})", *shown, *more]))
    return "\n\n".join(parts)


def _item(record: RunRecord, result: Result) -> str:
    clauses = ", ".join(map(escaped, result.clauses)) or "no clause"
    message = escaped(clean(result.message, 600)) or "(no message)"
    return f"**{escaped(result.id)}** ({clauses})  \n{message}\n\n{_fenced(replay_command(record, result.id))}"


def _fenced(text: str) -> str:
    """A code block that no text can end early."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{' '.join(clean(text).split())}\n{fence}"


def _outcomes(record: RunRecord) -> str:
    rows = [(str(outcome), f"{count:,}") for outcome, count in record.counts().items()]
    waiting = ", ".join(f"{count:,} for {place}" for place, count in not_run_places(record).items())
    return "## Outcomes\n\n" + table(("outcome", "items"), rows) + (f"\n\nNot run: {waiting}." if waiting else "")


def _volume(record: RunRecord) -> str:
    rows = [(escaped(axis), escaped(value)) for axis, value in record.volume.items()]
    lead = "What the backend declares; everything else must be refused, and declaring little shows here."
    return f"## Declared volume\n\n{lead}\n\n" + table(("axis", "declared"), rows or [("-", "nothing")])


def _clauses(record: RunRecord) -> str:
    columns = [one for one in Outcome if record.counts()[one]]
    rows = [
        [f"{row.id}: {escaped(row.title)}", row.state, *(f"{row.counts.get(one, 0) or ''}" for one in columns)]
        for row in clause_rows(record)
    ]
    return "## Clauses\n\n" + table(("clause", "state", *map(str, columns)), rows)


def _ratios(record: RunRecord) -> str:
    rows = [
        (escaped(row.rule), f"{row.count:,}", ratio_text(row.median), ratio_text(row.largest), escaped(row.item))
        for row in ratio_rows(record)
    ]
    if not rows:
        return ""
    lead = "Measured error over what the rule allows: 1 is the bound."
    return f"## Ratios\n\n{lead}\n\n" + table(("rule", "measured", "median", "largest", "where"), rows)


def _warnings(record: RunRecord) -> str:
    found = warnings(record)
    if not found:
        return ""
    lead = "Undeclared and right: declare it, or refuse it. In the way of a certificate."
    lines = [f"- {escaped(result.id)}: {escaped(first_line(message_of(result)))}" for result in found[:MOST]]
    more = [f"- ... and {len(found) - MOST:,} more, in report.json"] if len(found) > MOST else []
    return f"## UNDERCLAIM ({len(found):,})\n\n{lead}\n\n" + "\n".join([*lines, *more])


def _gaps(record: RunRecord) -> str:
    if not record.gaps:
        return ""
    names = ("id", "reason", "evidence", "expires")
    rows = [[escaped(str(gap.get(name, ""))) for name in names] for gap in record.gaps]
    return "## Known gaps\n\n" + table(names, rows)


def _facts(record: RunRecord) -> str:
    facts = {
        "verdict": verdict_words(record), "started": record.started, "seconds": f"{record.seconds:.1f}",
        "suite": record.suite, "numerics": record.numerics, "digest of manifest and sources": record.digest,
        "device": device_name(record), "architecture": device_arch(record),
        **environment_words(record),
    }  # fmt: skip
    rows = [(escaped(name), escaped(value)) for name, value in facts.items() if value]
    return "## Run\n\n" + table(("what", "value"), rows)
