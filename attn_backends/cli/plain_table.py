"""A table without rich, in the same style, for the one command that has 150 ms for everything: `list`."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import click

from attn_backends.cli.screen import BAD, GOOD, HEAD, NAME, QUIET, WARN

GAP = "   "
LEAST = 12  # characters that the column which gives way keeps
_STYLES: dict[str, dict[str, Any]] = {
    NAME: {"bold": True},
    QUIET: {"dim": True},
    GOOD: {"fg": "green"},
    WARN: {"fg": "yellow"},
    BAD: {"fg": "red", "bold": True},
    HEAD: {"fg": "cyan", "bold": True},
}

Line = tuple[str, str]  # (text, one of the styles of `screen`, or empty)
Cell = Sequence[Line]


def screen_width() -> int:
    """Columns of the terminal, COLUMNS if it is set, 80 elsewhere."""
    return shutil.get_terminal_size((80, 24)).columns


def say(*parts: Line) -> None:
    """One line on stdout, coloured where it is a terminal and NO_COLOR is not set."""
    styled = "".join(click.style(text, **_STYLES.get(style, {})) for text, style in parts)
    click.echo(styled, color=False if os.environ.get("NO_COLOR") else None)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], *, elastic: int) -> None:
    """Print it; column `elastic` is folded where the screen is too narrow for all."""
    widths = [
        max(len(text) for cell in ([(head, "")], *(row[column] for row in rows)) for text, _ in cell)
        for column, head in enumerate(heads)
    ]
    spare = screen_width() - sum(widths) - len(GAP) * (len(heads) - 1)
    widths[elastic] = max(LEAST, widths[elastic] + min(0, spare))
    _print_row([[(head, HEAD)] for head in heads], widths)
    click.echo(_rule() * (sum(widths) + len(GAP) * (len(heads) - 1)))
    for row in rows:
        _print_row([list(_folded(cell, width)) for cell, width in zip(row, widths, strict=True)], widths)


def _rule() -> str:
    """A light line, or what an old terminal has for it."""
    return "\u2500" if (sys.stdout.encoding or "").lower().replace("-", "") == "utf8" else "-"


def _folded(cell: Cell, width: int) -> Iterator[Line]:
    for text, style in cell:
        yield from ((part, style) for part in textwrap.wrap(text, width, break_on_hyphens=False) or [""])


def _print_row(cells: Sequence[Cell], widths: Sequence[int]) -> None:
    for number in range(max(map(len, cells))):
        parts: list[Line] = []
        for cell, width in zip(cells, widths, strict=True):
            text, style = cell[number] if number < len(cell) else ("", "")
            parts += [(text, style), (" " * (width - len(text)) + GAP, "")]
        while parts and not parts[-1][0].strip():  # no blanks at the end of a line
            parts.pop()
        say(*parts)
