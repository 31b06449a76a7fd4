"""`report.html`: the scorecard as one self-contained page, light and dark; it loads nothing and runs from a mail attachment.

Jinja2 (extra `[report]`) fills the template with everything escaped; what opens on a click is embedded as JSON and put on
the page as text, never as markup.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_backends.conformance.item import parse_item
from attn_backends.conformance.outcome import Outcome, Result
from attn_backends.conformance.record import RunRecord
from attn_backends.conformance.report.axes import READERS, axes
from attn_backends.conformance.report.clauses import clause_rows
from attn_backends.conformance.report.headline import (
    device_arch,
    device_name,
    environment_words,
    headline,
    not_run_places,
    strength,
    verdict_words,
)
from attn_backends.conformance.report.picture import picture
from attn_backends.conformance.report.plain import clean, first_line
from attn_backends.conformance.report.ratios import measured, ratio_rows, ratio_text
from attn_backends.conformance.report.replay import replay_command
from attn_backends.conformance.report.verdict import message_of, worst_first
from attn_backends.errors import AttnBackendsError

MOST = 4000  # items listed, the worst first; counts and matrix always cover all


class ReportExtraError(AttnBackendsError):
    """The package that writes HTML pages is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One outcome in the chart; `share` of the most frequent one."""

    outcome: Outcome
    count: int
    share: float
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One item of the table."""

    result: Result
    state: str
    message: str
    ratio: str
    search: str


def render_html(record: RunRecord) -> str:
    """The page as text. Raises ReportExtraError without jinja2."""
    template = _template()
    shown = worst_first(record.results)[:MOST]
    page: str = template.render(
        record=record, headline=headline(record), verdict=verdict_words(record), good=record.conforms,
        strength=strength(record), facts=_facts(record), tiles=_tiles(record),
        errors=record.errors, remarks=record.remarks,
        bars=_bars(record), places=not_run_places(record), picture=picture(axes(record)), clauses=clause_rows(record),
        ratios=ratio_rows(record), volume=record.volume,
        gaps=record.gaps,
        lines=[_line(result) for result in shown], hidden=len(record.results) - len(shown),
        details=embedded([_detail(record, result) for result in shown]),
    )  # fmt: skip
    return page


def embedded(value: Any) -> str:
    """JSON that is safe inside a `script` element: no `<`, `>` or `&` stands in it, hence no end tag and no comment."""
    text = json.dumps(value, separators=(",", ":"), default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def state_word(outcome: Outcome) -> str:
    """The colour of an outcome: failed, pass, refused, warn or not-run."""
    if outcome.bad:
        return "failed"
    words = {Outcome.PASS: "pass", Outcome.REFUSED: "refused", Outcome.UNDERCLAIM: "warn"}
    return words.get(outcome, "not-run")


def _template() -> Any:
    try:
        import jinja2
    except ImportError:
        raise ReportExtraError("HTML pages need jinja2; in a clone: pip install '.[report]'") from None
    folder = importlib.resources.files(__package__) / "templates"
    sources = {item.name: item.read_text(encoding="utf-8") for item in folder.iterdir() if item.is_file()}
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(sources), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_printable,
    )  # fmt: skip
    environment.filters["ratio"] = ratio_text
    return environment.get_template("page.html")


def _printable(value: Any) -> Any:
    """Every text that the template prints, without control characters; what is marked as safe is left alone."""
    return clean(value) if type(value) is str else value


def _facts(record: RunRecord) -> list[tuple[str, str]]:
    facts = {
        "device": device_name(record), "arch": device_arch(record) if record.device.get("arch") else "", "numerics": record.numerics, "suite": record.suite,
        "started": record.started[:19].replace("T", " "), "took": f"{record.seconds:,.1f} s",
        "filter": record.only or "", "digest": record.digest[:16],
        **environment_words(record),
    }  # fmt: skip
    return [(str(name), clean(str(value), 200)) for name, value in facts.items() if value]


def _tiles(record: RunRecord) -> list[tuple[str, str, str]]:
    """(number, what it counts, state) for the head of the page."""
    counts = record.counts()
    bad = sum(count for outcome, count in counts.items() if outcome.bad)
    made = [
        (f"{bad:,}", "failed", "failed" if bad else ""), (f"{counts[Outcome.PASS]:,}", "passed", "pass"),
        (f"{counts[Outcome.REFUSED]:,}", "rightly refused", ""),
        (f"{counts[Outcome.UNDERCLAIM]:,}", "right but undeclared", "warn" if counts[Outcome.UNDERCLAIM] else ""),
        (f"{counts[Outcome.NOT_RUN]:,}", "not run", ""), (f"{len(record.gaps):,}", "known gap" if len(record.gaps) == 1 else "known gaps", ""),
    ]  # fmt: skip
    if record.self_test is not None:
        test = record.self_test
        weak = test["killed"] < test["mutants"] or test["controls_failed"] > 0
        made.append((f"{test['killed']}/{test['mutants']}", "planted bugs found", "failed" if weak else ""))
    return made


def _bars(record: RunRecord) -> list[Bar]:
    counts = record.counts()
    most = max(counts.values()) or 1
    return [
        Bar(outcome=outcome, count=count, share=count / most, state=state_word(outcome))
        for outcome, count in counts.items()
    ]


def _line(result: Result) -> Line:
    words = (
        result.id,
        f"outcome:{result.outcome}",
        *result.clauses,
        first_line(message_of(result)),
        *_axis_words(result),
    )
    return Line(
        result=result, state=state_word(result.outcome), message=first_line(message_of(result), 200),
        ratio=_largest(result), search=clean(" ".join(words)).lower(),
    )  # fmt: skip


def _axis_words(result: Result) -> Sequence[str]:
    """`axis:value` for every axis, which is what a click on a tile of the matrix asks for."""
    try:
        _check, case = parse_item(result.id)
    except ValueError:
        return ()
    values = ((name, read(case)) for name, read in READERS.items())
    return [
        f"{name}:{one}".replace(" ", "")
        for name, value in values
        for one in ((value,) if isinstance(value, str) else dict.fromkeys(value))
    ]


def _largest(result: Result) -> str:
    ratios = measured(result).values()
    return ratio_text(max(ratios)) if ratios else ""


def _detail(record: RunRecord, result: Result) -> dict[str, Any]:
    """What the page shows when a row is opened."""
    made: dict[str, Any] = {"message": clean(message_of(result)), "seconds": f"{result.seconds:.3f} s"}
    if ratios := measured(result):
        made["ratios"] = [[clean(rule), ratio_text(ratio)] for rule, ratio in ratios.items()]
    return {**made, "replay": replay_command(record, result.id)}
