"""All cells of a suite, one after the other, saved after each, within a budget of minutes; a second run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch

from attn_backends.bench.cell import Cell
from attn_backends.bench.cell_run import Watch, run_cell
from attn_backends.bench.clock import Clock, clock_for
from attn_backends.bench.overhead import overhead_cells
from attn_backends.bench.results import CAPPED, LOST, SCHEMA, Json, Results, continued
from attn_backends.bench.rounds import Repeats
from attn_backends.bench.suites import HOST_METRIC, Suite
from attn_backends.bench.versions import clocks, device_name, versions
from attn_backends.host.dispatch import device_of
from attn_backends.registry.certificates import source_digest
from attn_backends.registry.registry import Registry, Snapshot, default_registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be run: `backends` in this order, `deadline` by `time.monotonic`, None = no end.

    `spare` says why a backend is to be left out of a cell, after what was found so far; None where it takes part.
    """

    suite: Suite
    cells: tuple[Cell, ...]
    backends: tuple[str, ...]
    device: torch.device
    seed: int
    command: str
    path: Path
    fresh: bool = False
    deadline: float | None = None
    repeats: Repeats = field(default_factory=Repeats)
    spare: Callable[[Results, Cell, str], str | None] = lambda _results, _cell, _name: None


@dataclass(slots=True, kw_only=True)
class Progress:
    """Who is told: `on_cell(done, of, record)` after a cell, `watch(text)` before every step."""

    on_cell: Callable[[int, int, Json], None] = lambda _done, _of, _record: None
    watch: Watch = lambda _text: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of a run: `left` are the cells without a record, `lost` the backend after which the device was gone."""

    results: Results
    left: tuple[str, ...]
    lost: str | None


def default_backends(snapshot: Snapshot) -> tuple[str, ...]:
    """Every installed backend but references, by priority: references are right, not fast."""
    standard = [one for one in snapshot.manifests if one.tier != "reference"]
    return tuple(one.name for one in sorted(standard, key=lambda one: (-one.priority, one.name)))


def run_suite(plan: Plan, progress: Progress, registry: Registry | None = None) -> Ran:
    """Run what is missing. Raises ResultsError where the file at `plan.path` was made under other conditions."""
    snapshot = (registry or default_registry()).snapshot()
    facts = device_of(plan.device)
    clock = clock_for(plan.device, facts)
    head = _head(plan, clock, snapshot)
    results = Results(head) if plan.fresh else continued(plan.path, head)
    if plan.suite.metric == HOST_METRIC:
        return _run_overhead(plan, progress, results, snapshot)
    missing = [cell for cell in plan.cells if not _has(results, cell, plan.backends, snapshot)]
    done, lost = len(plan.cells) - len(missing), None
    started, before = time.monotonic(), float(results.head["seconds"])
    results.head["clocks"] = {**results.head["clocks"], "before": clocks(plan.device)}
    while missing and lost is None and not _late(plan):
        cell = missing.pop(0)
        worth = _worth_trying(results, cell, plan.backends)
        spared = {name: why for name in worth if (why := plan.spare(results, cell, name)) is not None}
        names = [name for name in worth if name not in spared]
        record = run_cell(
            cell, names, snapshot=snapshot, facts=facts, device=plan.device, clock=clock, seed=plan.seed,
            repeats=plan.repeats, watch=progress.watch,
        )  # fmt: skip
        record["results"] |= {name: _spared(why, snapshot, name) for name, why in spared.items()}
        lost = next((name for name, outcome in record["results"].items() if outcome["status"] == LOST), None)
        _keep(results, record, plan)
        results.head["seconds"] = round(before + time.monotonic() - started, 1)
        results.head["clocks"]["after"] = clocks(plan.device) if lost is None else None
        results.write(plan.path)
        done += 1
        progress.on_cell(done, len(plan.cells), record)
    if not plan.path.exists():
        results.write(plan.path)
    return Ran(results=results, left=tuple(cell.id for cell in missing), lost=lost)


def _run_overhead(plan: Plan, progress: Progress, results: Results, snapshot: Snapshot) -> Ran:
    """All at once, and anew every time: it takes seconds, and its rows hang together."""
    started = time.monotonic()
    cells = overhead_cells(plan.backends, plan.device, plan.suite.size, snapshot, progress.watch)
    results.cells = {cell["id"]: cell for cell in cells}
    results.head["seconds"] = round(time.monotonic() - started, 1)
    results.head["clocks"] = {"after": clocks(plan.device)}
    results.write(plan.path)
    for done, cell in enumerate(cells, 1):
        progress.on_cell(done, len(cells), cell)
    return Ran(results=results, left=(), lost=None)


def _head(plan: Plan, clock: Clock, snapshot: Snapshot) -> Json:
    suite = plan.suite
    return {
        "schema": SCHEMA, "suite": suite.name, "doc": suite.doc, "metric": suite.metric, "axis": suite.axis,
        "size": suite.size, "device": device_of(plan.device).to_json(), "device_name": device_name(plan.device),
        "versions": versions(snapshot), "seed": plan.seed, "method": clock.method, "commands": [plan.command],
        "started": datetime.now(UTC).isoformat(timespec="seconds"), "seconds": 0.0, "clocks": {}, "void": None,
        "peers": None,
    }  # fmt: skip


def _late(plan: Plan) -> bool:
    return plan.deadline is not None and time.monotonic() >= plan.deadline


def _has(results: Results, cell: Cell, backends: Sequence[str], snapshot: Snapshot) -> bool:
    """Whether a cell's record has an outcome of every backend, and of the sources that are here."""
    record = results.cells.get(cell.id)
    if record is None:
        return False
    return all(
        name in record["results"] and record["results"][name]["sources"] == source_digest(snapshot.get(name))[:16]
        for name in backends
    )


def _worth_trying(results: Results, cell: Cell, backends: Sequence[str]) -> list[str]:
    """Not again the backend with which the device was lost on this very cell."""
    known = results.cells.get(cell.id, {}).get("results", {})
    return [name for name in backends if known.get(name, {}).get("status") != LOST]


def _spared(why: str, snapshot: Snapshot, name: str) -> Json:
    sources = source_digest(snapshot.get(name))[:16]
    return {"status": CAPPED, "why": why, "sources": sources, "predicted_ms": None}


def _keep(results: Results, record: Json, plan: Plan) -> None:
    """Lay a cell's record over the one there is; cells stay in the order of the suite.

    An outcome says by which of the commands it was made: those of one command were timed in turn.
    """
    for outcome in record["results"].values():
        outcome["command"] = results.head["commands"].index(plan.command)
    old = results.cells.get(record["id"], {}).get("results", {})
    results.cells[record["id"]] = {**record, "results": {**old, **record["results"]}}
    order = {cell.id: place for place, cell in enumerate(plan.suite.cells)}
    results.cells = dict(sorted(results.cells.items(), key=lambda item: order.get(item[0], len(order))))
