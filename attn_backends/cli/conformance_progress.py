"""Live counts per outcome on the bar of a conformance run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attn_backends.cli.run_bar import RunBar
    from attn_backends.conformance.outcome import Result

STYLES = {"PASS": "green", "REFUSED": "blue", "UNDERCLAIM": "yellow", "NOT_RUN": "dim"}
BAD = "bold red"


class Counts:
    """What a run's results so far came to; `on_result` is what `run_suite` calls."""

    def __init__(self, bar: RunBar) -> None:
        self._bar = bar
        self._counts: Counter[str] = Counter()

    def on_result(self, result: Result) -> None:
        """Count one result and draw."""
        self._counts[str(result.outcome)] += 1
        self._bar.at(self._counts.total())
        self._bar.say(counts_phrase(self._counts))


def counts_phrase(counts: Counter[str]) -> str:
    """`412 pass 38 refused 1 SILENT_WRONG` as rich markup; outcomes are a closed list, so nothing needs escaping."""
    from attn_backends.conformance.outcome import Outcome

    parts = []
    for outcome in reversed(Outcome):
        if number := counts[str(outcome)]:
            style = STYLES.get(str(outcome), BAD)
            parts.append(f"[{style}]{number} {outcome if outcome.bad else outcome.lower()}[/]")
    return " ".join(parts)
