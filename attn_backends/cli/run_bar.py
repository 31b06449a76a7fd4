"""How far a run is, on stderr, for every command: a bar on a terminal; elsewhere (a log, a pipe) a plain line now and then.

Such as `eager full: 412 of 1800, 60 s, 400 pass 12 refused`.
"""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Self, TextIO

EVERY = 30.0  # seconds between two lines


class RunBar:
    """A context around a run of `total` things; 0 where nobody knows yet how many. Lines begin after EVERY seconds."""

    def __init__(self, title: str, total: int = 0) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        screen = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._drawn = screen.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[said]}"), console=screen, transient=True, disable=not self._drawn,
        )  # fmt: skip
        self._task = self._bar.add_task(title, total=total or None, said="")
        self._ended = threading.Event()
        self._lines = threading.Thread(target=self._write_lines, args=(sys.stderr,), daemon=True)

    def __enter__(self) -> Self:
        self._bar.start()
        if not self._drawn:
            self._lines.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if not self._drawn:
            self._lines.join()
        self._bar.stop()

    def at(self, done: int, of: int | None = None, words: str | None = None) -> None:
        """So many are done; `of`: it is known now how many there are; `words`: as of `doing`."""
        if of is not None:
            self._bar.update(self._task, total=of)
        if words is not None:
            self.doing(words)
        self._bar.update(self._task, completed=done)

    def doing(self, words: str) -> None:
        """What is being done now."""
        from rich.markup import escape

        self.say(escape(words))

    def say(self, markup: str) -> None:
        """What stands behind the numbers, as rich markup."""
        self._bar.update(self._task, said=markup)

    def line(self) -> str:
        """The same as plain words."""
        from rich.text import Text

        task = self._bar.tasks[0]
        count = f"{task.completed:.0f}" + ("" if task.total is None else f" of {task.total:.0f}")
        said = Text.from_markup(task.fields["said"]).plain
        return ", ".join(filter(None, (f"{task.description}: {count}", f"{task.elapsed or 0:.0f} s", said)))

    def _write_lines(self, stream: TextIO) -> None:
        while not self._ended.wait(EVERY):
            stream.write(f"{self.line()}\n")
            stream.flush()
