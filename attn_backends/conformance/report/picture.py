"""Where every tile of the capability matrix stands: the picture as numbers, which the HTML template draws as SVG.

One block per axis: its name and a row of tiles, one per value. Blocks flow in two columns; a wide one takes both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attn_backends.conformance.report.axes import Axis, Cell

WIDTH = 1240
LABEL = 132  # room for the name of an axis
GAP = 5
TILE_HEIGHT = 28
ROW = TILE_HEIGHT + GAP
BLOCK_GAP = 7
COLUMN = (WIDTH - 24) // 2
CHARACTER = 7.3  # width of one, at the size of the template
MOSTLY = 0.5  # from this share of failures on, the value itself looks guilty; below, it was in bad company
MARKS = {"mixed": "\u25d0", "failed": "\u2715", "pass": "\u2713", "refused": "\u2013", "not run": "\u25cb"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One value: where, what it says, its state and the share of failures among what ran."""

    x: float
    y: float
    width: float
    text: str
    cell: Cell
    bad_share: float

    @property
    def state(self) -> str:
        """The cell's state; `mixed` where some failed and most did not."""
        return "mixed" if 0 < self.bad_share < MOSTLY else self.cell.state

    @property
    def mark(self) -> str:
        """The state as a sign, for those who do not see colours."""
        return MARKS[self.state]

    @property
    def search(self) -> str:
        """What a click writes into the filter box."""
        return f"{self.cell.axis}:{self.cell.value}".replace(" ", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One axis: where its name stands, and its tiles."""

    name: str
    x: float
    y: float
    tiles: Sequence[Tile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The whole matrix."""

    width: int
    height: float
    blocks: Sequence[Block]


def picture(axes: Sequence[Axis]) -> Picture:
    """Lay the axes out, the wide ones first in their order, the narrow ones in two columns below."""
    wide = [axis for axis in axes if _needed(axis) > COLUMN - LABEL]
    narrow = [axis for axis in axes if axis not in wide]
    blocks, y = [], 0.0
    for axis in wide:
        block, height = _block(axis, 0, y, WIDTH)
        blocks.append(block)
        y += height + BLOCK_GAP
    half = (len(narrow) + 1) // 2
    bottoms = [y]
    for column, part in enumerate((narrow[:half], narrow[half:])):
        top = y
        for axis in part:
            block, height = _block(axis, column * (COLUMN + 24), top, COLUMN)
            blocks.append(block)
            top += height + BLOCK_GAP
        bottoms.append(top)
    return Picture(width=WIDTH, height=max(bottoms), blocks=blocks)


def _block(axis: Axis, x: float, y: float, width: float) -> tuple[Block, float]:
    tiles = list(_tiles(axis, x + LABEL, y, x + width))
    bottom = max(tile.y for tile in tiles) + TILE_HEIGHT
    return Block(name=axis.name, x=x, y=y, tiles=tiles), bottom - y


def _tiles(axis: Axis, left: float, top: float, right: float) -> Iterator[Tile]:
    x, y = left, top
    for cell in axis.cells:
        width = _width(cell)
        if x > left and x + width > right:
            x, y = left, y + ROW
        ran = cell.passed + cell.failed
        yield Tile(x=x, y=y, width=width, text=_text(cell), cell=cell, bad_share=cell.failed / ran if ran else 0.0)
        x += width + GAP


def _text(cell: Cell) -> str:
    """The value, and for a failing one how many of how many failed."""
    ran = cell.passed + cell.failed
    return f"{cell.value} {cell.failed}/{ran}" if cell.failed else cell.value


def _width(cell: Cell) -> float:
    return round(30 + CHARACTER * len(_text(cell)), 1)


def _needed(axis: Axis) -> float:
    return sum(_width(cell) + GAP for cell in axis.cells)
