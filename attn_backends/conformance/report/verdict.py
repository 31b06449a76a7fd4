"""What a reader of a run sees first: the worst results, and those that are right and undeclared."""

from __future__ import annotations

from collections.abc import Iterable

from attn_backends.conformance.outcome import Outcome, Result
from attn_backends.conformance.record import RunRecord


def worst_first(results: Iterable[Result]) -> list[Result]:
    """Results in the order of `Outcome`, SILENT_WRONG first; in the order of the run among equals."""
    rank = {outcome: place for place, outcome in enumerate(Outcome)}
    return sorted(results, key=lambda result: rank[result.outcome])


def failing(record: RunRecord) -> list[Result]:
    """What fails the run, the worst first."""
    return worst_first(result for result in record.results if result.outcome.bad)


def warnings(record: RunRecord) -> list[Result]:
    """Undeclared and right: harmless here, in the way of a certificate."""
    return [result for result in record.results if result.outcome is Outcome.UNDERCLAIM]


def message_of(result: Result) -> str:
    """What was seen; a result that is right has nothing to say for itself, so an UNDERCLAIM is put into words here."""
    if result.message or result.outcome is not Outcome.UNDERCLAIM:
        return result.message
    check = result.id.partition("/")[0]
    axis = check.removeprefix("probe-")
    return f"right, and the manifest does not declare it ({axis})" if axis != check else "right, and not declared"
