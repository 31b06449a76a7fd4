"""Compiling ahead: processes side by side call every backend once on every shape, so that the one that times finds it all.

What is compiled lies in the caches on disk of Triton, FlashInfer and their like; nothing is timed, and what fails here
fails again where it is recorded. Calls of one backend that differ in their sizes alone compile much the same, so they are
made one after the other; and a process keeps to the backends that it has loaded. No torch.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable

from attn_backends.bench.cell import Cell
from attn_backends.calibrate.cells import cell_to_json
from attn_backends.conformance.child import Child

START_TIMEOUT = 120.0  # seconds until a process is ready
TIMEOUT = 120.0  # seconds for one call, compilation included
OVERTIME = 10.0  # seconds past the deadline for a call that was begun before
SLOW_S = 12.0  # of a call
MOST_SLOW = (
    16  # slow calls of a backend; one that has more compiles for every shape, and its rest is not worth the wait
)
MOST_ALIKE = 3  # calls of one backend at a time that differ in their sizes alone
POLL_S = 0.02  # of a process that waits for the calls of others

Job = tuple[Cell, str]  # a shape and a backend


def compile_ahead(
    jobs: Iterable[Job], *, device: str, seed: int, processes: int, setup: str | None = None,
    path: Iterable[str] = (), deadline: float | None = None, watch: Callable[[str], None] = lambda _text: None,
) -> int:  # fmt: skip
    """Call each backend once on its shape, in `processes` processes. Returns how many calls came to an end.

    setup, path: as in `crew`; deadline: by `time.monotonic`, after which no call is begun
    """
    waiting = Waiting(jobs)
    crew = _Crew(waiting, {"device": device, "seed": seed, "setup": setup}, tuple(path), deadline, watch)
    threads = [threading.Thread(target=crew.work, daemon=True) for _ in range(min(processes, len(waiting)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return crew.done


class Waiting:
    """Jobs in groups that compile alike. Of each group one is under way at a time, in the order in which they came.

    A process that would be idle takes one from a group's end, whose sizes are the farthest from those under way.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._groups: dict[Hashable, deque[tuple[int, Job]]] = {}
        for place, job in enumerate(jobs):
            self._groups.setdefault(_group(job), deque()).append((place, job))
        self._busy: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def take(self, known: set[str]) -> Job | None:
        """The earliest job that may begin, of a backend among `known` if there is one; None where there is none now."""
        with self._lock:
            found = [
                (self._busy[group], own[0][1][1] not in known, own[0][0], group)
                for group, own in self._groups.items()
                if self._busy[group] < MOST_ALIKE
            ]
            if not found:
                return None
            busy, _, _, group = min(found, key=lambda one: one[:3])
            own = self._groups[group]
            _, job = own.pop() if busy else own.popleft()
            if not own:
                del self._groups[group]
            self._busy[group] += 1
            return job

    def end(self, job: Job) -> None:
        """A job that was taken is over."""
        with self._lock:
            self._busy[_group(job)] -= 1


def _group(job: Job) -> Hashable:
    """All of a job that kernels are compiled for, sizes apart."""
    cell, backend = job
    group = cell.num_q_heads // cell.num_kv_heads
    return (
        backend, cell.phase, cell.passes, cell.dtype, cell.head_dim, cell.causal, cell.window_left is None,
        cell.softcap, cell.page_size, cell.store, group if cell.page_size is not None else None,
    )  # fmt: skip


class _Crew:
    """The jobs, and threads that each have one process at a time; one that dies or hangs is replaced."""

    def __init__(
        self, waiting: Waiting, told: dict[str, object], path: tuple[str, ...], deadline: float | None,
        watch: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.done = 0
        self._slow: Counter[str] = Counter()
        self._waiting, self._told, self._path, self._watch = waiting, told, path, watch
        self._deadline = float("inf") if deadline is None else deadline
        self._lock = threading.Lock()

    def work(self) -> None:
        """Take jobs until there are none, or no process comes up."""
        child: Child | None = None
        known: set[str] = set()
        while time.monotonic() < self._deadline and len(self._waiting):
            job = self._waiting.take(known)
            if job is None:
                time.sleep(POLL_S)
                continue
            if self._slow[job[1]] <= MOST_SLOW:
                child = child or self._started()
                if child is None:
                    self._waiting.end(job)
                    return
                known.add(job[1])
                if not self._call(child, *job):
                    child.kill()
                    child, known = None, set()
            self._waiting.end(job)
        if child is not None:
            child.kill()

    def _started(self) -> Child | None:
        child = Child("attn_backends.calibrate.worker", self._path)
        child.tell(self._told)
        said = child.receive(START_TIMEOUT, lambda message: "ready" in message or "failed" in message)
        if isinstance(said, dict) and said.get("ready"):
            return child
        child.kill()
        return None

    def _call(self, child: Child, cell: Cell, backend: str) -> bool:
        """Whether the process lives on."""
        started = time.monotonic()
        self._watch(f"compiling {cell.id}: {backend}")
        child.tell({"id": cell.id, "cell": cell_to_json(cell), "once": backend})
        timeout = min(TIMEOUT, self._deadline + OVERTIME - started)
        said = child.receive(timeout, lambda message: message.get("id") == cell.id and "status" in message)
        with self._lock:
            self._slow[backend] += time.monotonic() - started > SLOW_S
            self.done += isinstance(said, dict)
        if not isinstance(said, dict):
            return False
        return bool(said["status"] != "device_lost")
