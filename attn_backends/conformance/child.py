"""`Child`: a Python process of our own that speaks lines of JSON, and may die, hang or shout without harm.

It is started as a module, told things, and listened to. What it prints goes nowhere; whatever stands in its channel and
is no message is passed over. Each is the leader of a process group, so that what it started ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from attn_backends.conformance.outcome import Outcome

GRACE = 5.0  # seconds for a process to end that has closed its channel, or whose input has ended


class Child:
    """One process and the thread that reads what it says; `path`: further entries of its import path."""

    def __init__(self, module: str, path: Sequence[str] = ()) -> None:
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join((*path, *filter(None, [environment.get("PYTHONPATH")])))
        self._process = subprocess.Popen(  # noqa: S603  # this interpreter, with a module of this package
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
            errors="replace", env=environment, start_new_session=True,
        )  # fmt: skip
        self._said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        stream = self._process.stdout
        if stream is not None:
            with stream:
                for line in stream:
                    self._said.put(line)
        self._said.put(None)

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message; to a dead process it goes nowhere."""
        with contextlib.suppress(OSError):  # it is noticed when nothing comes back
            if self._process.stdin is not None:
                self._process.stdin.write(json.dumps(message) + "\n")
                self._process.stdin.flush()

    def receive(self, timeout: float, meant: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | Outcome:
        """The next message that is meant; CRASH when the process is gone, TIMEOUT when there is none in time."""
        deadline = time.perf_counter() + timeout
        while (left := deadline - time.perf_counter()) > 0:
            try:
                line = self._said.get(timeout=left)
            except queue.Empty:
                break
            if line is None:
                return Outcome.CRASH
            message = _read(line)
            if message is not None and meant(message):
                return message
        return Outcome.TIMEOUT

    def epitaph(self) -> str:
        """How the process ended; it may still be at it."""
        try:
            code = self._process.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            return "the process closed its channel and stayed"
        if code >= 0:
            return f"the process ended with exit code {code}"
        with contextlib.suppress(ValueError):
            return f"the process died of {signal.Signals(-code).name}"
        return f"the process died of signal {-code}"

    def kill(self) -> None:
        """End the process and what it started."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._shut()

    def close(self) -> None:
        """Let the process end: its input does."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=GRACE)
        self.kill()

    def _shut(self) -> None:
        self._process.wait()
        self._listener.join(timeout=1.0)  # a process that outlives this one may hold the channel open
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()


def _read(line: str) -> dict[str, Any] | None:
    """A message, or None for whatever else lies in the channel."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
