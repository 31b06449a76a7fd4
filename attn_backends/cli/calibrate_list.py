"""`attn-backends calibrate --list`: the shapes that a calibration would time, as a table and as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attn_backends.calibrate.cells import sizes_of
from attn_backends.cli.screen import NAME, QUIET, WARN, console, table, text
from attn_backends.selector.log.phrase import DTYPE_WORDS

if TYPE_CHECKING:
    from rich.table import Table

    from attn_backends.bench.cell import Cell
    from attn_backends.calibrate.points import Point, Points


def listed(points: Points) -> dict[str, Any]:
    """As data, in the order of the points. `sizes`: those whose times stand for a shape, each as (how many, new, keys)."""
    shapes = [
        {
            "id": point.cell.id, "request": point.cell.request().to_json(),
            "sizes": [cell.sequences for cell in sizes_of(point.cell)],
            "bucket": {"kind": point.bucket.kind, "place": point.bucket.place},
        }
        for point in points.points
    ]  # fmt: skip
    return {"shapes": shapes, "left_out": dict(points.left_out)}


def print_listed(points: Points) -> None:
    """A line a shape, those of a kind together and the small ones first; then how much there is to time."""
    screen = console()
    if points.points:
        screen.print(_shapes(points.points))
        screen.print()
    screen.print(text((_count(points.points), NAME), (_said(points.points), QUIET)))
    for what, requests in points.left_out.items():
        screen.print(text((f"left out: {requests} requests with {what}", WARN)))


def _count(points: tuple[Point, ...]) -> str:
    return f"{len(points):,} shape{'' if len(points) == 1 else 's'}"


def _said(points: tuple[Point, ...]) -> str:
    sizes = sum(len(sizes_of(point.cell)) for point in points)
    dtypes = ", ".join(_dtypes(points))
    return f" of {dtypes}, for which a backend is timed at {sizes:,} sizes" if points else ""


def _dtypes(points: tuple[Point, ...]) -> list[str]:
    return list(dict.fromkeys(DTYPE_WORDS.get(point.cell.dtype, point.cell.dtype) for point in points))


def _shapes(points: tuple[Point, ...]) -> Table:
    """Without the dtype where all have the same."""
    several = len(_dtypes(points)) > 1
    made = table("phase", "batch", "new", "keys", "heads", "width", *(["dtype"] if several else []), "what else")
    for column in made.columns[1:6]:
        column.justify = "right"
    for column in made.columns[:-1]:
        column.no_wrap = True
    for cell in _sorted(points):
        lengths = [(new, keys) for _, new, keys in cell.sequences]
        made.add_row(
            text(("backward" if cell.passes == "backward" else cell.phase, NAME)), f"{cell.batch:,}", *map(_range, zip(*lengths, strict=True)),
            f"{cell.num_q_heads}/{cell.num_kv_heads}", str(cell.head_dim),
            *([DTYPE_WORDS.get(cell.dtype, cell.dtype)] if several else []), text((" ".join(_further(cell)), QUIET)),
        )  # fmt: skip
    return made


def _sorted(points: tuple[Point, ...]) -> list[Cell]:
    """By kind, in the order in which kinds come first; within one by size."""
    kinds = list(dict.fromkeys(point.bucket.kind for point in points))
    order = sorted(points, key=lambda point: (kinds.index(point.bucket.kind), point.bucket.place))
    return [point.cell for point in order]


def _range(lengths: tuple[int, ...]) -> str:
    """`512`, or `64-512` of sequences that are not alike."""
    return "-".join(f"{length:,}" for length in dict.fromkeys((min(lengths), max(lengths))))


def _further(cell: Cell) -> Iterator[str]:
    if cell.window_left is not None:
        yield f"sliding {cell.window_left + 1}"  # in a causal cell
    elif cell.causal:
        yield "causal"
    if cell.softcap is not None:
        yield "softcap"
    if cell.page_size is not None:
        yield f"page {cell.page_size}"
    stored = {tensor: getattr(cell.store, f"{tensor}_format") for tensor in "qkv"}
    for way in dict.fromkeys(way for way in stored.values() if way != "dense"):
        yield f"{''.join(tensor for tensor in stored if stored[tensor] == way)} {way} {cell.store.granularity}"
