"""The built-in shapes of calibration, out of `grid.toml`, as cells. No torch."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from attn_backends.bench.cell import Cell
from attn_backends.calibrate.cells import EVERY_NUMERICS
from attn_backends.selector.cost.sequences import Sequences

MOST_KV_HEADS = 8
AXES = ("head_dim", "causal", "group", "window", "heads", "seq", "keys")


def grid_cells(kind: str) -> Iterator[Cell]:
    """The cells for a kind of device (`cuda`, `cpu`, ...); GPUs of all makers share a table."""
    table = grid_table(kind)
    for shapes in table["kinds"]:
        lists = {axis: shapes.get(axis, [None]) for axis in AXES}
        for values in itertools.product(*lists.values()):
            cell = _cell(shapes, table["dtype"], dict(zip(lists, values, strict=True)))
            if work_of(cell) <= table["work"] and rows_of(cell) <= shapes.get("rows", inf):
                yield cell


def grid_table(kind: str) -> dict[str, Any]:
    """The part of the file for a kind of device."""
    return dict(_file()["cpu" if kind == "cpu" else "cuda"])


def work_of(cell: Cell) -> float:
    """Floating-point operations of the forward pass over all pairs, hidden ones included."""
    pairs = sum(count * new * keys for count, new, keys in cell.sequences)
    return 4.0 * pairs * cell.num_q_heads * cell.head_dim


def rows_of(cell: Cell) -> int:
    """Query rows over sequences and heads."""
    return cell.num_q_heads * sum(count * new for count, new, _ in cell.sequences)


def batch_of(phase: str, count: int, new: int, keys: int) -> Sequences:
    """So many sequences of a grid's sizes: alike, but in a mixed batch, of which all but one have one new token."""
    if phase != "mixed" or count == 1:
        return ((count, new, keys),)
    return ((1, new, keys), (count - 1, 1, keys))


def _cell(shapes: Mapping[str, Any], dtype: str, at: dict[str, Any]) -> Cell:
    kv_heads = min(shapes.get("kv_heads", MOST_KV_HEADS), at["heads"])
    batch = at["heads"] // kv_heads
    keys = at["keys"] or at["seq"]
    words = [shapes["name"], *(f"{axis} {value}" for axis, value in at.items() if value is not None)]
    return Cell(
        id=" ".join(words), panel=shapes["name"], x=keys, phase=shapes["phase"],
        passes=shapes.get("passes", "forward"), dtype=dtype, sequences=batch_of(shapes["phase"], batch, at["seq"], keys),
        num_q_heads=kv_heads * at["group"], num_kv_heads=kv_heads, head_dim=at["head_dim"], causal=at["causal"],
        window_left=None if at["window"] is None else at["window"] - 1, page_size=shapes.get("page_size"),
        numerics=EVERY_NUMERICS,
    )  # fmt: skip


@cache
def _file() -> dict[str, Any]:
    return dict(tomllib.loads(Path(__file__).with_name("grid.toml").read_text(encoding="utf-8")))
