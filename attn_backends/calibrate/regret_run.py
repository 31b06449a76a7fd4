"""The backends timed on held-out shapes: a suite of the benchmark like any other, checked, in turn, saved, resumable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from attn_backends.bench.cell import Cell
from attn_backends.bench.peers import own_backends
from attn_backends.bench.results import OK, Json, Results
from attn_backends.bench.rounds import Repeats
from attn_backends.bench.suite_run import Plan, Progress, Ran, default_backends, run_suite
from attn_backends.calibrate.ahead import Job, compile_ahead
from attn_backends.calibrate.held_out import STEP, held_out
from attn_backends.calibrate.near import far_behind
from attn_backends.calibrate.picks import COST_MODEL, decisions
from attn_backends.host.dispatch import device_of
from attn_backends.registry.registry import Registry, default_registry
from attn_backends.selector.times import NO_TIMES

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.selector.decision import Candidate

REPEATS = Repeats(share_ms=40.0, least=5, most=25)
SLOW_START_S = 1.0  # of a first call that compiles
MOST_SLOW_STARTS = 4  # of one backend; one that compiles for every shape is left out of the rest
# Times the best prediction: who is predicted to take longer is no candidate for the best pick. Farther than a calibration's
# own limit, which is judged with it. Of 182 shapes on one H200 the fastest was never predicted above 1.37.
HOPELESS = 2.0
PEERS = 2  # so many of the peers are timed in any case, those of the best predictions
COMPILED = 1.4  # times the best prediction: who is compiled ahead; the peer of the best prediction is in any case
DEAR_S, NEAR = 10.0, 1.3  # seconds of first calls for a backend that was never so near the best on any shape


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
    """Shapes that the file, if any, does not have, with every backend that fits and is predicted near the best."""
    known = Results.read(path).cells if path is not None and path.exists() else {}
    facts = device_of(device)
    for cell in cells:
        if cell.id in known:
            continue
        fitting = _fitting(cell, facts, registry)
        far = far_behind(fitting, COMPILED, _peers(fitting)[:1])
        yield from ((cell, one.name) for one in fitting if one.name not in far)


def _sparing(device: torch.device, registry: Registry) -> Callable[[Results, Cell, str], str | None]:
    facts = device_of(device)

    def spare(results: Results, cell: Cell, name: str) -> str | None:
        started = [outcome for _, backend, outcome in results.outcomes() if backend == name]
        slow = sum(one["status"] == OK and one["first_call_s"] > SLOW_START_S for one in started)
        if slow >= MOST_SLOW_STARTS and 2 * slow > sum(one["status"] == OK for one in started):
            return f"compiles anew for most shapes; timed on {slow} of them"
        if sum(one.get("first_call_s", 0.0) for one in started) > DEAR_S and _nearest(results, name) > NEAR:
            return f"first calls of more than {DEAR_S:.0f} s, and never within {NEAR} times the best"
        fitting = _fitting(cell, facts, registry)
        if cell.id.endswith(STEP) and name not in [one.name for one in fitting]:
            return "does not serve the training step"
        if name in far_behind(fitting, HOPELESS, _peers(fitting)[:PEERS]):
            return f"predicted to take more than {HOPELESS:.0f} times the best"
        return None

    return spare


def _fitting(cell: Cell, facts: Device, registry: Registry) -> list[Candidate]:
    """Who fits, the best prediction first; the forward of a training step counts for those alone that serve the step."""
    cell = replace(cell, passes="backward") if cell.id.endswith(STEP) else cell
    candidates = decisions(cell.request(), facts, registry, NO_TIMES)[COST_MODEL].candidates
    return [one for one in candidates if one.status != "rejected" and one.tier != "reference"]


def _peers(fitting: Sequence[Candidate]) -> list[str]:
    own = own_backends()
    return [one.name for one in fitting if one.name not in own]


def _nearest(results: Results, name: str) -> float:
    """The least time of a backend over the best one's of the same cell; infinite without any."""
    found = [
        times[name] / min(times.values())
        for cell in results.cells.values()
        if name in (times := _times(cell))
    ]  # fmt: skip
    return min(found, default=inf)


def _times(cell: Json) -> dict[str, float]:
    return {name: one["device_ms"]["median"] for name, one in cell["results"].items() if one["status"] == OK}
