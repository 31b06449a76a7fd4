"""Which declared words no case shows: every word of a closed list that a box writes out must be in one. No torch.

A word that generation left out is looked for one step along its axis from a case that is there. What even that does not
show is left, and fails the run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from attn_backends.box import Box, Table, axis_values
from attn_backends.capability import FITS_ANY, Row
from attn_backends.conformance.case import Case
from attn_backends.conformance.case_request import request_of
from attn_backends.conformance.flips import flipped
from attn_backends.conformance.generating import Scope
from attn_backends.device import Device

_NOT_SHOWN = ("device", "arch", "compile", "graph", "unknown_feature", "index_width")  # no word of a case says these

Word = tuple[str, object]  # axis, value


def unshown(boxes: Sequence[Box], cases: Iterable[Case], device: Device, table: Table) -> list[Word]:
    """Declared words that no case has, in the order of the table."""
    shown = {word for case in cases for word in _words_of(case, device, table)}
    return [
        (row.axis, value)
        for index, row in enumerate(table)
        if row.axis not in _NOT_SHOWN
        for value in _values(row)
        if _declared(boxes, index, value) and (row.axis, value) not in shown
    ]


def showing(scope: Scope, cases: Sequence[Case]) -> list[Case]:
    """A further case for each word that the box declares and its cases do not show, where one step from a case finds it."""
    found: list[Case] = []
    for axis, value in unshown([scope.box], cases, scope.device, scope.table):
        steps = (step for case in cases for step in flipped(case, axis))
        found += itertools.islice((step for step in steps if _shows(scope, step, axis, value)), 1)
    return found


def _shows(scope: Scope, case: Case, axis: str, value: object) -> bool:
    return scope.admits(case) and (axis, value) in _words_of(case, scope.device, scope.table)


def _words_of(case: Case, device: Device, table: Table) -> set[Word]:
    values = axis_values(request_of(case), device, table)
    return {
        (row.axis, one)
        for row, value in zip(table, values, strict=True)
        if value is not FITS_ANY
        for one in (value if row.parts else (value,))
    }


def _values(row: Row) -> tuple[object, ...]:
    """Every value of an axis that is a closed list."""
    if row.kind.name == "flags":
        return (False, True)
    return tuple(row.kind.legal.split(" | ")) if row.kind.name == "names" else ()


def _declared(boxes: Sequence[Box], index: int, value: object) -> bool:
    """Whether a box writes the value out; neutral values that nobody wrote do not count."""
    entries = (entry for box in boxes for entry in box.entries[index] if entry is not None)
    return any(entry.admits(value) for entry in entries)
