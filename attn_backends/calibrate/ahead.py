"""Compiling ahead: processes side by side call every backend once on every shape, so that the one that times finds it all.

What is compiled lies in the caches on disk of Triton, FlashInfer and their like; nothing is timed, and what fails here
fails again where it is recorded. No torch.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

from attn_backends.bench.cell import Cell
from attn_backends.calibrate.cells import cell_to_json
from attn_backends.conformance.child import Child

START_TIMEOUT = 120.0  # seconds until a process is ready
TIMEOUT = 120.0  # seconds for one call, compilation included
SLOW_S = 12.0  # of a call
MOST_SLOW = (
    16  # slow calls of a backend; one that has more compiles for every shape, and its rest is not worth the wait
)

Job = tuple[Cell, str]  # a shape and a backend


def compile_ahead(
    jobs: Iterable[Job], *, device: str, seed: int, processes: int, setup: str | None = None,
    path: Iterable[str] = (), deadline: float | None = None, watch: Callable[[str], None] = lambda _text: None,
) -> int:  # fmt: skip
    """Call each backend once on its shape, in `processes` processes. Returns how many calls came to an end.

    setup, path: as in `crew`; deadline: by `time.monotonic`, after which no call is begun
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    crew = _Crew(waiting, {"device": device, "seed": seed, "setup": setup}, tuple(path), deadline, watch)
    threads = [threading.Thread(target=crew.work, daemon=True) for _ in range(min(processes, waiting.qsize()))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return crew.done


class _Crew:
    """The jobs, and threads that each have one process at a time; one that dies or hangs is replaced."""

    def __init__(
        self, waiting: queue.SimpleQueue[Job], told: dict[str, object], path: tuple[str, ...], deadline: float | None,
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
        while (job := self._next()) is not None:
            if self._slow[job[1]] > MOST_SLOW:
                continue
            child = child or self._started()
            if child is None:
                return
            if not self._call(child, *job):
                child.kill()
                child = None
        if child is not None:
            child.kill()

    def _next(self) -> Job | None:
        if time.monotonic() >= self._deadline:
            return None
        try:
            return self._waiting.get_nowait()
        except queue.Empty:
            return None

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
        said = child.receive(TIMEOUT, lambda message: message.get("id") == cell.id and "status" in message)
        with self._lock:
            self._slow[backend] += time.monotonic() - started > SLOW_S
            self.done += isinstance(said, dict)
        if not isinstance(said, dict):
            return False
        return bool(said["status"] != "device_lost")
