"""A benchmark on the screen: cells down, backends across, the best of each cell marked; then what was not timed and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attn_backends.bench.compare import Change, differences_of, geometric_mean
from attn_backends.bench.figures import UNITS, best_of, digits, spread_of, value_of
from attn_backends.bench.results import CAPPED, OK, REFUSED, Json, Results
from attn_backends.cli.screen import BAD, GOOD, HEAD, NAME, QUIET, WARN, console, table, text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from attn_backends.cli.bench_outcome import Outcome

SPREAD = 0.01  # half a quartile range over the median, above which a cell says so
LEAST_COLUMN, GAP = 8, 3
SHORT = {
    "refused": "-",
    "wrong": "wrong",
    "error": "error",
    "out_of_memory": "memory",
    "device_lost": "lost",
    "capped": "-",
}
VERDICTS = {"slower": BAD, "faster": GOOD}


def print_outcome(outcome: Outcome) -> None:
    """Everything that a person wants to see of one suite's run."""
    screen = console()
    for part in outcome_view(outcome, screen.width):
        screen.print(part)


def outcome_view(outcome: Outcome, width: int) -> Iterator[RenderableType]:
    """The parts, top to bottom."""
    results = outcome.results
    head = results.head
    yield text((head["suite"], NAME), f": {head['doc']}")
    yield text((f"{head['device_name']}, {UNITS[head['metric']]}; {head['method']}", QUIET))
    yield ""
    for columns in _columns(results, width):
        yield _table(results, columns)
        yield ""
    yield from _untimed(results)
    if outcome.changes is not None and outcome.then is not None:
        yield from _changes(outcome.then, results, outcome.changes)
    yield from _closing(outcome)


def _columns(results: Results, width: int) -> Iterator[list[str]]:
    """Timed backends, as many at a time as the screen is wide enough for."""
    first = max([len(str(name)) for name in results.cells] or [4]) + GAP + len("of floor") + GAP
    group: list[str] = []
    used = first
    for name in results.backends():
        needs = max(len(name), LEAST_COLUMN) + GAP
        if group and used + needs > width:
            yield group
            group, used = [], first
        group.append(name)
        used += needs
    if group:
        yield group


def _table(results: Results, columns: Sequence[str]) -> Table:
    metric = results.head["metric"]
    floors = any(cell.get("floor") for cell in results.cells.values())
    made = table("cell", *columns, *(["of floor"] if floors else []))
    made.columns[0].no_wrap = True
    for column in made.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for cell in results.cells.values():
        outcomes = cell["results"]
        if not any(name in outcomes for name in columns):
            continue
        best = best_of(cell, metric)
        row = [_cell(outcomes.get(name), metric, best=name == best) for name in columns]
        if floors:
            share = outcomes[best].get("of_the_floor") if best else None
            row.append(text("" if share is None else f"{share:.0%}"))
        made.add_row(str(cell["id"]), *row)
    return made


def _cell(outcome: Json | None, metric: str, *, best: bool) -> Any:
    value = value_of(outcome, metric)
    if outcome is None:
        return text()
    if value is None:
        return text((SHORT.get(outcome["status"], "-"), QUIET if outcome["status"] in (REFUSED, CAPPED) else BAD))
    spread = spread_of(outcome, metric)
    return text((digits(value), GOOD if best else ""), (f" ±{spread:.0%}" if spread > SPREAD else "", QUIET))


def _untimed(results: Results) -> Iterator[RenderableType]:
    """Per backend, how often it was not timed, and the most common reason."""
    reasons: dict[str, Counter[tuple[str, str]]] = {}
    for _, backend, outcome in results.outcomes():
        if outcome["status"] != OK:
            reasons.setdefault(backend, Counter())[(outcome["status"], outcome.get("why", ""))] += 1
    if reasons:
        yield text(("not timed", HEAD))
    for backend, found in reasons.items():
        (status, why), _ = found.most_common(1)[0]
        bad = any(name not in (REFUSED, CAPPED) for name, _ in found)
        yield text((f"  {backend}", WARN if bad else ""), f"  {sum(found.values())} cells, {status}: ", (why, QUIET))
    if reasons:
        yield ""


def _changes(then: Results, now: Results, changes: Sequence[Change]) -> Iterator[RenderableType]:
    counts = Counter(change.verdict for change in changes)
    yield text(("since then", HEAD), "  " + ", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    mean = geometric_mean(changes)
    if mean is not None:
        yield text(
            f"time now over time then: {mean:.3f} (geometric mean of {sum(c.ratio is not None for c in changes)})"
        )
    yield from (text((f"  {line}", QUIET)) for line in differences_of(then, now))
    shown = [change for change in changes if change.verdict in VERDICTS]
    if not shown:
        return
    made = table("cell", "backend", "then ms", "now ms", "ratio", "")
    for change in sorted(shown, key=lambda one: -(one.ratio or 0)):
        made.add_row(
            change.cell, change.backend, digits(change.then_ms or 0), digits(change.now_ms or 0), f"{change.ratio:.3f}",
            text((change.verdict, VERDICTS[change.verdict])),
        )  # fmt: skip
    yield made
    yield ""


def _closing(outcome: Outcome) -> Iterator[RenderableType]:
    """Where it is, what is left, and whether it counts."""
    head = outcome.results.head
    if head["peers"] is not None and not head["void"]:
        yield text(f"peers: {head['peers']['compared']} recorded times compared, none missed by more than 10 %")
    if outcome.ran.lost is not None:
        yield text((f"the device was lost in {outcome.ran.lost}: run again to go on without it on that cell", BAD))
    elif outcome.ran.left:
        yield text((f"{len(outcome.ran.left)} cells are left: run the same command again to go on", WARN))
    if head["void"]:
        yield text((head["void"], BAD))
    page = f", {outcome.page.name}" if outcome.page else "; plots need jinja2; in a clone: pip install '.[report]'"
    yield text(("written  ", QUIET), f"{outcome.path}{page}")
    yield ""
