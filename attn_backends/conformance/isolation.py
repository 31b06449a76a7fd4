"""`run_isolated`: items in worker processes, so that a backend that dies, hangs or shouts costs one item and no more.

A worker that dies is a CRASH of its item, one that says nothing for `timeout` seconds a TIMEOUT; either way a fresh one
goes on, as it does after a kernel that read or wrote astray: a GPU refuses its process everything afterwards. Every item gets
a result, and only a message that names the item is one: a backend may write into any file that it finds open, and may fork. A probe runs what a backend never promised: a crash there is as good as a refusal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attn_backends.conformance.checks import CHECKS
from attn_backends.conformance.child import Child
from attn_backends.conformance.item import Item
from attn_backends.conformance.outcome import Outcome, Result

OnResult = Callable[[Result], None]
START_TIMEOUT = 120.0  # seconds until a worker is ready: imports, and what a setup does
MOST_FAILED_STARTS = 3  # in a row; after that nothing is tried again
MOST_HANGS = 8  # in a row, over all workers; after that only refusals are tried, until one of them answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every worker of a run is told."""

    backend: str
    device: str = "cpu"
    setup: str | None = None  # "module:function" that registers backends in the worker
    threads: int = 1
    path: tuple[str, ...] = ()  # further entries of the import path, for `setup`


def run_isolated(
    backend: str,
    items: Sequence[Item],
    *,
    device: str = "cpu",
    timeout: float = 120.0,
    on_result: OnResult | None = None,
    workers: int = 1,
    setup: str | None = None,
    path: Sequence[str] = (),
) -> list[Result]:
    """Run items against a backend, in worker processes; results in the order of the items, one each.

    timeout: seconds for one item; on_result: called with each result as it comes, one at a time
    setup: "module:function", called in each worker before anything else; path: where its module may lie
    """
    job = Job(backend=backend, device=device, setup=setup, path=tuple(path))
    crew = _Crew(job=job, items=list(items), timeout=timeout, on_result=on_result)
    threads = [threading.Thread(target=crew.work, daemon=True) for _ in range(max(1, min(workers, len(items))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [crew.results[index] for index in range(len(crew.items))]


class _Crew:
    """The items, handed out in order to however many threads, each of which has one worker process at a time."""

    def __init__(self, *, job: Job, items: list[Item], timeout: float, on_result: OnResult | None) -> None:
        self.items = items
        self.results: dict[int, Result] = {}
        self._job, self._timeout, self._on_result = job, timeout, on_result
        self._next = iter(range(len(items)))
        self._lock = threading.Lock()
        self._failed_starts = 0
        self._hangs = 0

    def work(self) -> None:
        """Take items until there are none."""
        worker: Child | None = None
        try:
            while (index := self._take()) is not None:
                worker, result = self._one(worker, self.items[index])
                self._keep(index, result)
        finally:
            if worker is not None:
                worker.close()

    def _take(self) -> int | None:
        with self._lock:
            return next(self._next, None)

    def _keep(self, index: int, result: Result) -> None:
        with self._lock:
            self.results[index] = result
            if self._on_result is not None:
                self._on_result(result)

    def _one(self, worker: Child | None, item: Item) -> tuple[Child | None, Result]:
        """One item, and the worker that is left afterwards."""
        started = time.perf_counter()
        if self._hangs >= MOST_HANGS and CHECKS[item.check].kind != "refusal":
            text = f"not tried: the {MOST_HANGS} items before it gave no answer within {self._timeout:g} s"
            return worker, _result(item, Outcome.TIMEOUT, text, started)
        if worker is None:
            born = self._start()
            if isinstance(born, _DeadWorker):
                return None, _result(item, Outcome.CRASH, f"no worker: {born.why}", started)
            worker = born
        worker.tell({"id": item.id, "clauses": list(item.clauses)})
        answer = worker.receive(self._timeout, lambda message: message.get("id") == item.id and "outcome" in message)
        self._hangs = self._hangs + 1 if answer is Outcome.TIMEOUT else 0
        if isinstance(answer, dict):
            spent = bool(answer.pop("spent", False))
            try:
                result = Result.from_json(answer)
            except (KeyError, TypeError, ValueError) as error:  # the backend wrote it, not the worker
                worker.kill()
                return None, _result(item, Outcome.CRASH, f"no result: {type(error).__name__}: {error}", started)
            return _unless_spent(worker, result, spent), result
        outcome = answer
        why = "no answer" if outcome is Outcome.TIMEOUT else worker.epitaph()
        text = f"{why} after {time.perf_counter() - started:.1f} s"
        worker.kill()
        if CHECKS[item.check].kind == "probe":
            outcome = Outcome.REFUSED
        return None, _result(item, outcome, text, started)

    def _start(self) -> Child | _DeadWorker:
        """A ready worker, or why there is none."""
        if self._failed_starts >= MOST_FAILED_STARTS:
            return _DeadWorker("earlier ones never came up")
        worker = _started(self._job)
        self._failed_starts = 0 if isinstance(worker, Child) else self._failed_starts + 1
        return worker


def _started(job: Job) -> Child | _DeadWorker:
    worker = Child("attn_backends.conformance.worker", job.path)
    worker.tell({"backend": job.backend, "device": job.device, "setup": job.setup, "threads": job.threads})
    said = worker.receive(START_TIMEOUT, lambda message: "ready" in message or "failed" in message)
    if isinstance(said, dict) and said.get("ready"):
        return worker
    why = said["failed"] if isinstance(said, dict) else worker.epitaph()
    worker.kill()
    return _DeadWorker(why)


def rehearsed_plan(job: Job, level: str, timeout: float = START_TIMEOUT) -> Result | None:
    """Plan in a worker first: what a backend says to a request (`check`) runs while planning, and may end the process.

    The result of a plan that died or hung; None where it can be made here, or fails here in words.
    """
    started = time.perf_counter()
    worker = _started(job)
    if isinstance(worker, _DeadWorker):
        return None
    worker.tell({"plan": level})
    said = worker.receive(timeout, lambda message: "planned" in message)
    why = "no plan" if said is Outcome.TIMEOUT else worker.epitaph() if said is Outcome.CRASH else ""
    worker.kill()
    if isinstance(said, dict):
        return None
    seconds = time.perf_counter() - started
    text = f"while planning, where the backend's `check` is asked: {why} after {seconds:.1f} s"
    return Result(id="plan/check", outcome=said, clauses=("REFUSE-2",), message=text, seconds=seconds)


def _unless_spent(worker: Child, result: Result, spent: bool) -> Child | None:
    """A worker whose item tried to leave the process, or broke the GPU's context, is not used again."""
    if result.outcome is not Outcome.CRASH and not spent:
        return worker
    worker.close()
    return None


def _result(item: Item, outcome: Outcome, message: str, started: float) -> Result:
    clauses = item.clauses or CHECKS[item.check].clauses_of(item.case)
    return Result(
        id=item.id, outcome=outcome, clauses=clauses, message=message, seconds=time.perf_counter() - started
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _DeadWorker:
    why: str
