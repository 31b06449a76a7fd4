"""How a request stands to boxes: which axes it misses, worked out box by box and apart from the selector's index. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attn_backends.box import Box, Table, Values, axis_values
from attn_backends.capability import FITS_ANY, GRAPH_LEVELS, TABLE
from attn_backends.conformance.case import Case
from attn_backends.conformance.case_request import request_of
from attn_backends.device import Device
from attn_backends.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The nearest box (fewest axes missed, first in file order) and the axes missed there, each once."""

    box: Box
    axes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the request lies in the box."""
        return not self.axes


def standing(boxes: Sequence[Box], request: Request, device: Device, table: Table = TABLE) -> Standing:
    """How a request stands to the boxes of one backend."""
    values = axis_values(request, device, table)
    missed = [(misses(box, values, table), box) for box in boxes]
    axes, box = min(missed, key=lambda pair: len(set(pair[0])))
    return Standing(box=box, axes=tuple(dict.fromkeys(axes)))


def misses(box: Box, values: Values, table: Table = TABLE) -> list[str]:
    """The axes that a box does not admit, once per part."""
    found = []
    for index, (row, value) in enumerate(zip(table, values, strict=True)):
        if value is FITS_ANY:
            continue
        parts = value if row.parts else (value,)
        found += [row.axis for part, one in enumerate(parts) if not box.admits(row, index, part, one)]
    return found


def graph_level(boxes: Sequence[Box], case: Case, device: Device, table: Table = TABLE) -> str:
    """The freest capture that is declared for a case; `never` where none is."""
    levels = [
        level
        for level in GRAPH_LEVELS
        if standing(boxes, request_of(case).replace(graph=level), device, table).fits
    ]  # fmt: skip
    return levels[-1] if levels else GRAPH_LEVELS[0]


def here(boxes: Sequence[Box], device: Device, table: Table = TABLE) -> list[Box]:
    """The boxes whose device and architecture are this device's."""
    return [box for box in boxes if not _elsewhere(box, device, table)]


def _elsewhere(box: Box, device: Device, table: Table) -> bool:
    for index, row in enumerate(table):
        if row.axis in ("device", "arch"):
            value = row.read(None, device)  # type: ignore[arg-type]  # neither looks at the request
            if not box.admits(row, index, 0, value):
                return True
    return False
