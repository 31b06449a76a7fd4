"""`self_test`: the suite tried on planted bugs and on correct implementations, on this machine.

Every mutant runs against the quick items until one kills it (or against all, for the whole matrix), every lie is told,
every control, the victim among them, runs against all of its quick items. Two processes; a task is one of these.
Nothing is installed or left registered.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from attn_backends.conformance.controls import NAMES
from attn_backends.conformance.kill_matrix import ControlRecord, KillMatrix, MutantRecord

PROCESSES = 2
VICTIM = "victim"

Progress = Callable[[int, int, str], None]  # done, of how many, what was done
Record = MutantRecord | ControlRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A mutant, a lie or a control by its name; `only`: ids of the items that a mutant meets."""

    kind: str  # mutant, lie, control
    name: str
    full_matrix: bool = False
    only: tuple[str, ...] = ()


def self_test(
    full_matrix: bool = False,
    on_progress: Progress | None = None,
    *,
    mutants: bool = True,
    controls: bool = True,
    only: tuple[str, ...] = (),
    processes: int = PROCESSES,
) -> KillMatrix:
    """Measure the suite; the gate is `KillMatrix.holds`.

    full_matrix: every item on every mutant, which takes an hour; on_progress(done, of how many, what)
    mutants, controls: leave one side out; only: mutants meet these items alone
    """
    from attn_backends.conformance.mutants.catalogue import all_mutants
    from attn_backends.conformance.mutants.plugins.catalogue import all_lies

    started = time.perf_counter()
    every = all_mutants() if mutants else ()
    here = [one for one in every if not one.equivalent and one.hardware is None]
    lies = all_lies() if mutants and not only else ()
    tasks = [
        *(_control_tasks() if controls else ()),
        *(Task(kind="lie", name=one.name) for one in lies),
        *(Task(kind="mutant", name=one.name, full_matrix=full_matrix, only=only) for one in here),
    ]
    records: list[Record] = []
    for task, record in _done(tasks, processes):
        records.append(record)
        if on_progress is not None:
            on_progress(len(records), len(tasks), task.name)
    place = {name: index for index, name in enumerate([*(one.name for one in here), *(one.name for one in lies)])}
    tried = sorted((one for one in records if isinstance(one, MutantRecord)), key=lambda one: place[one.name])
    return KillMatrix(
        mutants=tuple(tried),
        controls=tuple(sorted((one for one in records if isinstance(one, ControlRecord)), key=lambda one: one.name)),
        equivalent={one.name: one.proof for one in every if one.equivalent},
        elsewhere={one.name: one.hardware for one in every if one.hardware is not None},
        full=full_matrix,
        seconds=time.perf_counter() - started,
    )


def _control_tasks() -> list[Task]:
    """First, because they take longest."""
    return [Task(kind="control", name=name) for name in (VICTIM, *NAMES)]


def _done(tasks: list[Task], processes: int) -> Iterator[tuple[Task, Record]]:
    """Tasks with their records, as they end."""
    if processes < 2:
        yield from ((task, work(task)) for task in tasks)
        return
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=processes, mp_context=spawned, initializer=_one_thread) as pool:
        waiting = {pool.submit(work, task): task for task in tasks}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def _one_thread() -> None:
    """As many processes as cores leave one thread to each."""
    import torch

    torch.set_num_threads(1)


_trials: dict[str, object] = {}


def work(task: Task) -> Record:
    """One task in this process; what it learnt about the victim and about good items stays for the next."""
    from attn_backends.conformance.controls.catalogue import control
    from attn_backends.conformance.mutants.catalogue import mutant
    from attn_backends.conformance.mutants.plugins.catalogue import lie_named
    from attn_backends.conformance.trial import Trial, unmutated

    trial = _trials.setdefault("trial", Trial())
    assert isinstance(trial, Trial)
    if task.kind == "mutant":
        return trial.mutant(mutant(task.name), full_matrix=task.full_matrix, only=task.only)
    if task.kind == "lie":
        return lie_named(task.name).tried()
    return trial.control(unmutated() if task.name == VICTIM else control(task.name))
