"""Measured error over what was allowed, by rule: how near a backend came, so that changed constants can be replayed."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from attn_backends.conformance.record import RunRecord


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
        for rule, ratio in result.ratios.items():
            found.setdefault(rule, []).append((ratio, result.id))
    rows = [_row(rule, measured) for rule, measured in found.items()]
    return sorted(rows, key=lambda row: (-row.largest, row.rule))


def _row(rule: str, measured: list[tuple[float, str]]) -> RatioRow:
    largest, item = max(measured)
    return RatioRow(
        rule=rule, count=len(measured), median=statistics.median(ratio for ratio, _ in measured), largest=largest,
        item=item,
    )  # fmt: skip
