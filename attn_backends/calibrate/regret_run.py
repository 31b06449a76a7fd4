"""The backends timed on held-out shapes: a suite of the benchmark like any other, checked, in turn, saved, resumable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from attn_backends.bench.cell import Cell
from attn_backends.bench.results import OK, Results
from attn_backends.bench.rounds import Repeats
from attn_backends.bench.suite_run import Plan, Progress, Ran, default_backends, run_suite
from attn_backends.calibrate.ahead import Job, compile_ahead
from attn_backends.calibrate.held_out import held_out
from attn_backends.calibrate.picks import COST_MODEL, decisions
from attn_backends.host.dispatch import device_of
from attn_backends.registry.registry import Registry, default_registry
from attn_backends.selector.times import NO_TIMES

REPEATS = Repeats(share_ms=40.0, least=5, most=25)
SLOW_START_S = 1.0  # of a first call that compiles
MOST_SLOW_STARTS = 4  # of one backend; one that compiles for every shape is left out of the rest
HOPELESS = 10.0  # times the best prediction: one that is predicted to take so long is no candidate for the best pick


def time_held_out(
    *, path: Path, device: torch.device, seed: int, size: str, deadline: float | None, command: str, fresh: bool,
    progress: Progress, registry: Registry | None = None, repeats: Repeats = REPEATS, processes: int = 0,
) -> Ran:  # fmt: skip
    """Time what is missing in the file at `path`. Raises ResultsError where it was made under other conditions.

    processes: so many call every backend that may be picked once on every shape first, all of them at once, so that
    little is left to compile between the times.
    """
    made = registry or default_registry()
    suite = held_out(device.type, seed, size)
    if processes:
        jobs = _jobs(suite.cells, None if fresh else path, device, made)
        compile_ahead(
            jobs, device=str(device), seed=seed, processes=processes, watch=progress.watch,
            deadline=None if deadline is None else (time.monotonic() + deadline) / 2,
        )  # fmt: skip
    plan = Plan(
        suite=suite, cells=suite.cells, backends=default_backends(made.snapshot()), device=device, seed=seed,
        command=command, path=path, fresh=fresh, deadline=deadline, repeats=repeats, spare=_sparing(device, made),
    )  # fmt: skip
    return run_suite(plan, progress, made)


def _jobs(cells: Sequence[Cell], path: Path | None, device: torch.device, registry: Registry) -> Iterator[Job]:
    """Shapes that the file, if any, does not have, with every backend that fits and is not hopeless."""
    known = Results.read(path).cells if path is not None and path.exists() else {}
    facts = device_of(device)
    for cell in cells:
        if cell.id in known:
            continue
        candidates = decisions(cell.request(), facts, registry, NO_TIMES)[COST_MODEL].candidates
        fitting = [one for one in candidates if one.status != "rejected" and one.tier != "reference"]
        best = min((one.predicted_ms for one in fitting if one.predicted_ms is not None), default=float("inf"))
        yield from ((cell, one.name) for one in fitting if (one.predicted_ms or 0.0) <= HOPELESS * best)


def _sparing(device: torch.device, registry: Registry) -> Callable[[Results, Cell, str], str | None]:
    facts = device_of(device)

    def spare(results: Results, cell: Cell, name: str) -> str | None:
        started = [outcome for _, backend, outcome in results.outcomes() if backend == name]
        slow = sum(one["status"] == OK and one["first_call_s"] > SLOW_START_S for one in started)
        if slow >= MOST_SLOW_STARTS and 2 * slow > sum(one["status"] == OK for one in started):
            return f"compiles anew for most shapes; timed on {slow} of them"
        candidates = decisions(cell.request(), facts, registry, NO_TIMES)[COST_MODEL].candidates
        predicted = {one.name: one.predicted_ms for one in candidates if one.predicted_ms is not None}
        if name in predicted and predicted[name] > HOPELESS * min(predicted.values()):
            return f"predicted to take more than {HOPELESS:.0f} times the best"
        return None

    return spare
