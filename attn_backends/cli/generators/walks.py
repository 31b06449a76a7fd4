"""docs/images/triton_tiled_walks.svg: which tiles the tiled kernel visits, and in which of them it computes a mask.

The stretches are worked out here again, in plain numbers, as `backends/triton_tiled/walk.py` works them out in a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

TOKENS = 1024
TILE = 64
CELL = 12  # pixels
GAP = 36
TOP = 58
CAPTION = f"queries down, keys across; {TOKENS} tokens in tiles of {TILE} x {TILE}"
COLOURS = {"skipped": "#eceff4", "whole": "#5e81ac", "cut": "#ebcb8b"}
LABELS = {"whole": "visited, every pair visible", "cut": "visited, masked", "skipped": "never visited"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A pattern by name, and whether it shows a pair of positions."""

    title: str
    visible: Callable[[int, int], bool]


PANELS = (
    Panel("causal", lambda q, k: k <= q),
    Panel("causal, window 256", lambda q, k: q - 256 <= k <= q),
    Panel("Longformer, window 128, 1 global", lambda q, k: abs(q - k) <= 128 or q == 0 or k == 0),
)


def render() -> str:
    """The picture's text."""
    side = TOKENS // TILE * CELL
    width = GAP + len(PANELS) * (side + GAP)
    height = TOP + side + 48
    body = [line for number, panel in enumerate(PANELS) for line in _panel(panel, GAP + number * (side + GAP))]
    return "\n".join(
        [
            _opening(width, height),
            "<title>Tiles that triton_tiled visits</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            f'<text x="{GAP}" y="22" fill="#2e3440">{CAPTION}</text>',
            *body,
            *_legend(TOP + side + 26),
            "</svg>",
            "",
        ]
    )


def _opening(width: int, height: int) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Helvetica, Arial, sans-serif" font-size="13">'


def _panel(panel: Panel, left: int) -> Iterator[str]:
    kinds = [[_kind(panel, row, column) for column in range(TOKENS // TILE)] for row in range(TOKENS // TILE)]
    visited = sum(kind != "skipped" for row in kinds for kind in row)
    yield f'<text x="{left}" y="{TOP - 8}" fill="#2e3440" font-weight="bold">{panel.title}: {visited} of {len(kinds) ** 2}</text>'
    for row, line in enumerate(kinds):
        for column, kind in enumerate(line):
            yield (
                f'<rect x="{left + column * CELL}" y="{TOP + row * CELL}" width="{CELL - 1}" height="{CELL - 1}" '
                f'fill="{COLOURS[kind]}"/>'
            )


def _kind(panel: Panel, row: int, column: int) -> str:
    pairs = [
        panel.visible(query, key)
        for query in range(row * TILE, (row + 1) * TILE)
        for key in range(column * TILE, (column + 1) * TILE)
    ]
    return "whole" if all(pairs) else "cut" if any(pairs) else "skipped"


def _legend(y: int) -> Iterator[str]:
    x = GAP
    for kind, label in LABELS.items():
        yield f'<rect x="{x}" y="{y - 10}" width="11" height="11" fill="{COLOURS[kind]}" stroke="#d8dee9"/>'
        yield f'<text x="{x + 17}" y="{y}" fill="#2e3440">{label}</text>'
        x += 17 + 7 * len(label) + 20
