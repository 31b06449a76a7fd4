"""Rows of plain text in aligned columns; the last column may have several lines. Terminal colours are the caller's."""

from __future__ import annotations

from collections.abc import Sequence


def align(rows: Sequence[Sequence[str]], *, indent: int = 2, gap: int = 2) -> list[str]:
    """Lines in which every column but the last is padded; further lines of a last cell stand below its first."""
    if not rows:
        return []
    widths = [max(len(cell) for cell in column) for column in zip(*(row[:-1] for row in rows), strict=True)]
    hanging = " " * (indent + sum(width + gap for width in widths))
    lines = []
    for *cells, last in rows:
        first, *more = last.split("\n")
        padded = "".join(cell.ljust(width + gap) for cell, width in zip(cells, widths, strict=True))
        lines.append((" " * indent + padded + first).rstrip())
        lines += [(hanging + line).rstrip() for line in more]
    return lines
