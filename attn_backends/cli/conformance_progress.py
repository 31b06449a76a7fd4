"""The bar of a run, on stderr: how far, and live counts per outcome. Where stderr is no terminal nothing is drawn."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attn_backends.conformance.outcome import Result

STYLES = {"PASS": "green", "REFUSED": "blue", "UNDERCLAIM": "yellow", "NOT_RUN": "dim"}
BAD = "bold red"


class Progress:
    """A context around a run; `on_plan` and `on_result` are what `run_suite` calls."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        screen = Console(stderr=True, highlight=False, markup=False, emoji=False)
        words = TextColumn("{task.fields[counts]}", markup=True)
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), words,
            console=screen, transient=True, disable=not screen.is_terminal,
        )  # fmt: skip
        self._counts: Counter[str] = Counter()
        self._task = self._bar.add_task(title, total=None, counts="")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def on_plan(self, items: int) -> None:
        """Now it is known how many there are."""
        self._bar.update(self._task, total=items)

    def on_result(self, result: Result) -> None:
        """Count one result and draw."""
        self._counts[str(result.outcome)] += 1
        self.advance(sum(self._counts.values()), None, counts_phrase(self._counts))

    def advance(self, done: int, total: int | None, said: str = "") -> None:
        """Draw that `done` of `total` are done."""
        more: dict[str, Any] = {} if total is None else {"total": total}
        self._bar.update(self._task, completed=done, counts=said, **more)


def counts_phrase(counts: Counter[str]) -> str:
    """`412 pass 38 refused 1 SILENT_WRONG` as rich markup; outcomes are a closed list, so nothing needs escaping."""
    from attn_backends.conformance.outcome import Outcome

    parts = []
    for outcome in reversed(Outcome):
        if number := counts[str(outcome)]:
            style = STYLES.get(str(outcome), BAD)
            parts.append(f"[{style}]{number} {outcome if outcome.bad else outcome.lower()}[/]")
    return " ".join(parts)
