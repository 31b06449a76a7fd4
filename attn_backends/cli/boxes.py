"""Capability boxes as tables: what all boxes of a backend share, then one column per box for what sets them apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attn_backends.capability import REQUIRED, TABLE, Row
from attn_backends.cli.screen import table
from attn_backends.reason import show

if TYPE_CHECKING:
    from rich.table import Table

    from attn_backends.box import Box

COLUMN = 20  # characters that a box's column should have at least
Line = tuple[str, tuple[str, ...]]  # an axis (or a part of one), and what each box says


def box_tables(boxes: Sequence[Box], width: int) -> Iterator[Table]:
    """The tables, each at most `width` wide."""
    lines = list(declared(boxes))
    shared = [line for line in lines if len(set(line[1])) == 1]
    apart = [line for line in lines if len(set(line[1])) > 1]
    if shared:
        made = table("axis", "every box" if len(boxes) > 1 else "allowed")
        for axis, said in shared:
            made.add_row(axis, said[0])
        yield made
    step = max(1, (width - 22) // COLUMN)
    for start in range(0, len(boxes) if apart else 0, step):
        numbers = range(start, min(start + step, len(boxes)))
        made = table("axis", *(f"box {number + 1}" for number in numbers))
        for axis, said in apart:
            made.add_row(axis, *(said[number] for number in numbers))
        yield made


def declared(boxes: Sequence[Box]) -> Iterator[Line]:
    """Every axis that some box declares; an axis whose parts differ, part by part."""
    for index, row in enumerate(TABLE):
        parts = [tuple(box.entries[index][part] for box in boxes) for part in range(max(1, len(row.parts)))]
        said = [tuple(allowed.text if allowed else _neutral(row) for allowed in part) for part in parts]
        if all(allowed is None for part in parts for allowed in part):
            continue
        if len(set(said)) == 1:
            yield row.axis, said[0]
        else:
            yield from ((f"{row.axis}: {name}", texts) for name, texts in zip(row.parts, said, strict=True))


def _neutral(row: Row) -> str:
    return "nothing" if row.neutral is REQUIRED else f"{show(row.neutral)} only"


def undeclared(boxes: Sequence[Box]) -> list[str]:
    """The axes that no box declares: anything but their neutral value is refused."""
    named = {axis.partition(":")[0] for axis, _ in declared(boxes)}
    return [row.axis for row in TABLE if row.axis not in named and row.kind.name != "undeclarable"]
