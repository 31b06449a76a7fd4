"""Measured error over what was allowed, by rule: how near a backend came, so that changed constants can be replayed."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from attn_backends.conformance.outcome import Outcome, Result
from attn_backends.conformance.record import RunRecord

_ENDLESS = 1e300  # JSON has no infinity; this much over nothing is one


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioRow:
    """One rule of the tolerance. 1.0 is all that is allowed; `item` is where the largest was measured."""

    rule: str
    count: int
    median: float
    largest: float
    item: str


def ratio_rows(record: RunRecord) -> list[RatioRow]:
    """Every rule that was measured, the nearest to its bound first."""
    found: dict[str, list[tuple[float, str]]] = {}
    for result in record.results:
        for rule, ratio in measured(result).items():
            found.setdefault(rule, []).append((ratio, result.id))
    rows = [_row(rule, pairs) for rule, pairs in found.items()]
    return sorted(rows, key=lambda row: (-row.largest, row.rule))


def measured(result: Result) -> dict[str, float]:
    """The ratios that speak of the backend: a REFUSED one ran past the selector and was wrong, as it may be."""
    return {} if result.outcome is Outcome.REFUSED else result.ratios


def ratio_text(ratio: float) -> str:
    """`0.213`, `4.7e+07`, `inf`."""
    if ratio >= _ENDLESS:
        return "inf"
    return f"{ratio:.3f}" if ratio < 1000 else f"{ratio:.1e}"


def _row(rule: str, found: list[tuple[float, str]]) -> RatioRow:
    largest, item = max(found)
    return RatioRow(
        rule=rule, count=len(found), median=statistics.median(ratio for ratio, _ in found), largest=largest,
        item=item,
    )  # fmt: skip
