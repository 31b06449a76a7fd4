"""The order of `quick`: a greedy cover of the kill matrix, so that the first items kill most; kept in `quick_order.json`.

python -m attn_backends.conformance.cover        measure and write the file anew (minutes)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from attn_backends.conformance.item import Item, parse_item

ORDER = Path(__file__).with_name("quick_order.json")


def greedy_cover(kills: Mapping[str, Sequence[str]]) -> list[str]:
    """Items (item -> mutants that it kills), each the one that kills most of what is left; then none that adds nothing.

    Ties go to the smaller id, so that the same matrix gives the same order.
    """
    left = {mutant for names in kills.values() for mutant in names}
    order: list[str] = []
    while left:
        best = min(kills, key=lambda item: (-len(left & set(kills[item])), item))
        order.append(best)
        left -= set(kills[best])
    return order


@cache
def _kept() -> dict[str, list[str]]:
    return dict(json.loads(ORDER.read_text(encoding="utf-8"))) if ORDER.exists() else {}


def quick_order() -> tuple[str, ...]:
    """Item ids, most useful first; empty where none was measured."""
    return tuple(_kept().get("items", ()))


def added_items() -> tuple[Item, ...]:
    """Items that some mutant needs and generation does not make at `quick`; to be run where the backend declares them."""
    return tuple(_read(text) for text in _kept().get("added", ()))


def _read(text: str) -> Item:
    from attn_backends.conformance.checks import CHECKS

    check, case = parse_item(text)
    return Item(check, case, CHECKS[check].clauses_of(case))


def write_order(kills: Mapping[str, Sequence[str]], path: Path = ORDER) -> list[str]:
    """Write the cover of a matrix, items that were added by hand kept; returns the cover."""
    order, added = greedy_cover(kills), _kept().get("added", [])
    path.write_text(json.dumps({"items": order, "added": added}, indent=1) + "\n", encoding="utf-8")
    _kept.cache_clear()
    return order


def measured_kills() -> dict[str, tuple[str, ...]]:
    """Which item kills which mutants: first the first killer of each, then every mutant against all of those."""
    from attn_backends.conformance.self_test import self_test

    first = self_test(controls=False)
    killers = tuple(item for item in first.kills() if "/" in item and ": " not in item)
    return self_test(controls=False, full_matrix=True, only=killers).kills()


if __name__ == "__main__":
    write_order(measured_kills())
