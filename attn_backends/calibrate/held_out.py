"""Shapes that nobody tuned for: drawn from a seed, between the smallest and the largest sizes of the built-in grid.

Sizes are drawn evenly over their logarithms, half of the lengths whole multiples of 64, half any number. A training step is
two cells, its forward and its backward; their times are added. Shapes of all kinds are mixed evenly, so that a run that ends
early has its share of each. No torch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from attn_backends.bench.cell import Cell
from attn_backends.bench.suites import Suite
from attn_backends.calibrate.grid import AXES, batch_of, grid_table, work_of

SUITE = "held-out"
STEP = " forward"  # ends the id of a training step's forward cell


def held_out(kind: str, seed: int, size: str) -> Suite:
    """The suite of a seed, for a kind of device. `small` draws an eighth as many shapes of each kind."""
    table = grid_table(kind)
    made = random.Random(seed)  # noqa: S311  # shapes, not secrets
    placed: list[tuple[float, list[Cell]]] = []  # how far on in its kind a shape is, and its cells
    for shapes in table["kinds"]:
        for variant in _variants(shapes):
            count = variant.get("held_out", 0) if size == "full" else -(-variant.get("held_out", 0) // 8)
            placed += [
                ((number + 0.5) / count, _passes(_drawn(made, variant, table, number))) for number in range(count)
            ]
    cells = [cell for _, own in sorted(placed, key=lambda one: one[0]) for cell in own]
    doc = f"shapes drawn from seed {seed} between the sizes of the calibration grid"
    return Suite(name=SUITE, doc=doc, metric="ms", axis="shape", size=size, cells=tuple(cells))


def shapes_in(suite: Suite) -> int:
    """How many shapes; a training step counts once."""
    return sum(not cell.id.endswith(STEP) for cell in suite.cells)


def _variants(shapes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One per value of `causal`, as they are reported apart."""
    for causal in shapes["causal"]:
        yield {**shapes, "causal": [causal]}


def _passes(cell: Cell) -> list[Cell]:
    if cell.passes == "forward":
        return [cell]
    return [replace(cell, passes="forward", id=cell.id + STEP), cell]


def _drawn(made: random.Random, shapes: Mapping[str, Any], table: Mapping[str, Any], number: int) -> Cell:
    """A shape of no more work than the grid's."""
    while True:
        cell = _once(made, shapes, table["dtype"], number)
        if work_of(cell) <= table["work"]:
            return cell


def _once(made: random.Random, shapes: Mapping[str, Any], dtype: str, number: int) -> Cell:
    at: dict[str, Any] = {axis: _value(made, axis, shapes[axis]) if axis in shapes else None for axis in AXES}
    kv_heads = min(made.choice((1, 2, 4, 8)), at["heads"])
    batch = max(1, at["heads"] // kv_heads)
    if at["keys"] is not None and at["keys"] < at["seq"]:
        at["keys"] = at["seq"]
    keys = at["keys"] or at["seq"]
    mask = "window" if at["window"] else "causal" if at["causal"] else "full"
    group = f"gqa{at['group']}" if at["group"] > 1 else ""
    name = shapes["name"] if shapes["name"] != "window" else "prefill"
    panel = " ".join(filter(None, [name, mask if name in ("prefill", "backward") else "", "gqa" if group else ""]))
    sizes = f"b{batch} h{kv_heads * at['group']}/{kv_heads} d{at['head_dim']} s{at['seq']} k{keys}"
    return Cell(
        id=f"{name} {mask} {number}: {sizes}" + (f" w{at['window']}" if at["window"] else ""), panel=panel, x=sizes,
        phase=shapes["phase"], passes=shapes.get("passes", "forward"), dtype=dtype,
        sequences=batch_of(shapes["phase"], batch, at["seq"], keys), num_q_heads=kv_heads * at["group"], num_kv_heads=kv_heads,
        head_dim=at["head_dim"], causal=at["causal"], window_left=at["window"] - 1 if at["window"] else None,
        page_size=shapes.get("page_size"),
    )  # fmt: skip


def _value(made: random.Random, axis: str, values: list[Any]) -> Any:
    """Of a kind of number, one in the range of the grid; of anything else, one of its values."""
    if axis in ("head_dim", "causal"):
        return made.choice(values)
    least, most = min(values), max(values)
    if axis == "group":
        return 2 ** made.randint(round(math.log2(least)), round(math.log2(most)))
    size = round(2 ** made.uniform(math.log2(least), math.log2(most)))
    if axis != "heads" and size > 128 and made.random() < 0.5:
        size = min(most, -(-size // 64) * 64)
    return size
