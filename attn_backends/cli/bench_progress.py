"""The bar of whatever is timed, on stderr: what is done, what is being done. Nothing where stderr is no terminal."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attn_backends.bench.suite_run import Progress


class BenchProgress:
    """A context around a run."""

    def __init__(self, title: str, cells: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        screen = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[doing]}"), console=screen, transient=True, disable=not screen.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task(title, total=cells or None, doing="")

    def __enter__(self) -> BenchProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def listener(self) -> Progress:
        """What the run tells of itself."""
        from attn_backends.bench.suite_run import Progress

        return Progress(on_cell=lambda done, of, _record: self.at(done, of), watch=self.doing)

    def at(self, done: int, of: int) -> None:
        """So many are done."""
        self._bar.update(self._task, completed=done, total=of)

    def doing(self, words: str) -> None:
        """What is being done now."""
        self._bar.update(self._task, doing=words)
