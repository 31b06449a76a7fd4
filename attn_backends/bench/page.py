"""`SUITE.html`: a results file as one self-contained page: plots as SVG, every figure in a table, what it depends on.

Jinja2 (extra `[report]`) fills the template with everything escaped. The page loads nothing.
"""

from __future__ import annotations

import importlib.resources
from collections import Counter
from dataclasses import dataclass
from typing import Any

from attn_backends.bench.figures import UNITS, best_of, digits, spread_of, value_of
from attn_backends.bench.plot import COLOURS, mark_of, panels
from attn_backends.bench.results import CAPPED, OK, REFUSED, Json, Results
from attn_backends.errors import AttnBackendsError

SPREAD = 0.01  # above which a figure says so
SHORT = {REFUSED: "-", CAPPED: "-", "out_of_memory": "memory", "device_lost": "lost"}


class PageExtraError(AttnBackendsError):
    """The package that writes HTML pages is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One figure of the table."""

    text: str
    more: str
    state: str  # best | timed | refused | broken | none
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Competitor:
    """One backend of the legend."""

    name: str
    version: str
    colour: int
    mark: str
    wins: int
    timed: int


def render_page(results: Results) -> str:
    """The page as text. Raises PageExtraError without jinja2."""
    template = _template()
    head = results.head
    page: str = template.render(
        head=head, unit=UNITS[head["metric"]], facts=_facts(head), panels=panels(results),
        competitors=_competitors(results), rows=[_row(cell, results) for cell in results.cells.values()],
        untimed=_untimed(results), versions=head["versions"], commands=head["commands"], peers=head["peers"],
    )  # fmt: skip
    return page


def _template() -> Any:
    try:
        import jinja2
    except ImportError:
        raise PageExtraError("HTML pages need jinja2; in a clone: pip install '.[report]'") from None
    folder = importlib.resources.files(__package__) / "templates"
    sources = {item.name: item.read_text(encoding="utf-8") for item in folder.iterdir() if item.is_file()}
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(sources), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html")


def _facts(head: Json) -> list[tuple[str, str]]:
    clocks = head["clocks"].get("after") or {}
    facts = {
        "device": head["device_name"], "sizes": head["size"], "torch": head["versions"].get("torch"),
        "triton": head["versions"].get("triton"), "driver": head["versions"].get("driver"),
        "SM clock": clocks.get("clocks.sm"), "power": clocks.get("power.draw"), "seed": head["seed"],
        "started": head["started"][:16].replace("T", " "), "took": f"{head['seconds']:,.0f} s",
    }  # fmt: skip
    return [(name, str(value)) for name, value in facts.items() if value is not None]


def _competitors(results: Results) -> list[Competitor]:
    metric = results.head["metric"]
    wins = Counter(best_of(cell, metric) for cell in results.cells.values())
    timed = Counter(backend for _, backend, _ in results.timed())
    versions = {backend: outcome.get("version", "") for _, backend, outcome in results.timed()}
    return [
        Competitor(
            name=name, version=versions[name], colour=place % COLOURS, mark=mark_of(place), wins=wins[name],
            timed=timed[name],
        )
        for place, name in enumerate(results.backends())
    ]  # fmt: skip


def _row(cell: Json, results: Results) -> dict[str, Any]:
    metric = results.head["metric"]
    best = best_of(cell, metric)
    floor = cell["floor"]
    return {
        "id": cell["id"], "bound": floor["bound"] if floor else "",
        "floor": f"{floor['seconds'] * 1e3:.4g}" if floor else "",
        "entries": [_entry(cell["results"].get(name), metric, best=name == best) for name in results.backends()],
    }  # fmt: skip


def _entry(outcome: Json | None, metric: str, *, best: bool) -> Entry:
    if outcome is None:
        return Entry(text="", more="", state="none", title="")
    value = value_of(outcome, metric)
    if value is None:
        state = "refused" if outcome["status"] in (REFUSED, CAPPED) else "broken"
        shown = SHORT.get(outcome["status"], str(outcome["status"]))
        return Entry(text=shown, more="", state=state, title=outcome.get("why", ""))
    spread = spread_of(outcome, metric)
    share = outcome.get("of_the_floor")
    more = "" if share is None else f"{share:.0%}"
    return Entry(
        text=digits(value) + (f" ±{spread:.0%}" if spread > SPREAD else ""), more=more,
        state="best" if best else "timed", title=_details(outcome),
    )  # fmt: skip


def _details(outcome: Json) -> str:
    parts = []
    for name, label in (("device_ms", "device"), ("host_ms", "host")):
        times = outcome.get(name)
        if times:
            parts.append(
                f"{label} {times['median']:.4g} ms ({times['q25']:.4g} to {times['q75']:.4g}, {times['count']} samples)"
            )
    if outcome.get("error"):
        parts.append(f"relative error {outcome['error']['whole']:.2g}")
    if outcome.get("predicted_ms") is not None:
        parts.append(f"predicted {outcome['predicted_ms']:.4g} ms")
    if outcome.get("conversions"):
        parts.append("converts: " + ", ".join(outcome["conversions"]))
    return "; ".join(parts)


def _untimed(results: Results) -> list[dict[str, Any]]:
    """Backend, status and reason of what has no times, with how many cells that was; broken ones first."""
    found: Counter[tuple[str, str, str]] = Counter()
    for _, backend, outcome in results.outcomes():
        if outcome["status"] != OK:
            found[backend, outcome["status"], outcome.get("why", "")] += 1
    rows = [
        {"backend": backend, "status": status, "why": why, "cells": cells, "broken": status not in (REFUSED, CAPPED)}
        for (backend, status, why), cells in found.items()
    ]
    return sorted(rows, key=lambda row: (not row["broken"], row["backend"], -row["cells"]))
