"""Running the suites of an order: progress on stderr, verdicts on what came, the page beside the results file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_backends.bench.compare import Change, compare
from attn_backends.bench.peers import judge, read_figures, void_words
from attn_backends.bench.results import ERROR, LOST, WRONG, Results
from attn_backends.bench.suite_run import Plan, Ran, run_suite
from attn_backends.bench.suites import Suite
from attn_backends.cli.bench_order import Order
from attn_backends.cli.bench_progress import listener
from attn_backends.cli.run_bar import RunBar

BROKEN = (WRONG, ERROR, LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One suite after its run."""

    path: Path
    page: Path | None  # None without jinja2
    ran: Ran
    then: Results | None = None
    changes: tuple[Change, ...] | None = None

    @property
    def results(self) -> Results:
        """The whole file, earlier runs included."""
        return self.ran.results

    @property
    def good(self) -> bool:
        """Whether nothing is broken, void, or slower than before."""
        broken = any(outcome["status"] in BROKEN for _, _, outcome in self.results.outcomes())
        slower = any(change.verdict == "slower" for change in self.changes or ())
        return not (broken or slower or self.results.head["void"] or self.ran.lost)

    def to_json(self) -> dict[str, Any]:
        """The results file with what was found besides."""
        changes = None if self.changes is None else [change.to_json() for change in self.changes]
        return {
            "file": self.path.name, "results": self.results.to_json(), "left": list(self.ran.left), "lost": self.ran.lost,
            "changes": changes, "good": self.good,
        }  # fmt: skip


def outcomes(order: Order) -> Iterator[Outcome]:
    """Run suite after suite; once the device is lost, none of the rest."""
    for suite in order.suites:
        outcome = _run(order, suite)
        yield outcome
        if outcome.ran.lost is not None:
            return


def _run(order: Order, suite: Suite) -> Outcome:
    figures = read_figures(order.figures) if order.figures else None
    cells = order.cells_of(suite)
    path = order.path_of(suite)
    plan = Plan(
        suite=suite, cells=cells, backends=order.backends_here(), device=order.device, seed=order.seed_of(suite),
        command=order.command, path=path, fresh=order.fresh, deadline=order.deadline,
    )  # fmt: skip
    with RunBar(suite.name, len(cells)) as bar:
        ran = run_suite(plan, listener(bar))
    results = ran.results
    if figures is not None and order.figures is not None:
        results.head["peers"] = judge(results, figures, order.figures.name)
        results.head["void"] = void_words(results.head["peers"])
    results.write(path)
    then = order.against if order.against and order.against.head["suite"] == suite.name else None
    changes = None if then is None else tuple(compare(then, results))
    return Outcome(path=path, page=_page(results, path), ran=ran, then=then, changes=changes)


def _page(results: Results, path: Path) -> Path | None:
    from attn_backends.bench.page import PageExtraError, render_page

    try:
        text = render_page(results)
    except PageExtraError:
        return None
    page = path.with_suffix(".html")
    page.write_text(text, encoding="utf-8")
    return page
