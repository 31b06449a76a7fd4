"""The plots of a results file as numbers, which the page draws as SVG: one panel per group of cells, two charts each.

Where a panel's cells stand on a scale (lengths), a chart has a line per backend over powers of two; where they are named
shapes, a group of bars per shape. The first chart has the suite's own unit, the second the share of the roofline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attn_backends.bench.figures import UNITS, best_of, digits, quartiles_of, roof_of, value_of
from attn_backends.bench.results import OK, Json, Results

WIDTH, HEIGHT = 620.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 14.0, 14.0, 34.0
BAR, GROUP_GAP, LABEL_LINE = 13.0, 12.0, 20.0
BAR_LEFT, BAR_RIGHT = 14.0, 86.0
COLOURS = 10  # of the page; further backends begin again, with another mark
MARKS = ("circle", "square", "diamond", "triangle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One point of a line: where, its quartiles, and what a pointer says of it."""

    x: float
    y: float
    low: float
    high: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One backend over the lengths of a panel."""

    backend: str
    colour: int
    mark: str
    path: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A place on an axis and its label."""

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """Lines over a scale of powers of two, from zero up; `roof` is the roofline's path, empty without one."""

    kind = "lines"
    width: float
    height: float
    unit: str
    lines: tuple[Line, ...]
    roof: str
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One backend's bar in a group."""

    backend: str
    colour: int
    y: float
    width: float
    label: str
    title: str
    best: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The bars of one named shape; `roof` is where the roofline is, None without one."""

    label: str
    y: float
    end: float
    bars: tuple[Bar, ...]
    roof: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Groups of bars, one below the other."""

    kind = "bars"
    width: float
    height: float
    unit: str
    groups: tuple[Group, ...]


Chart = LineChart | BarChart


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """What belongs side by side: the suite's unit, and the share of the roofline where there is one."""

    name: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """What a chart shows of a cell: the value of an outcome, its quartiles, the roofline."""

    unit: str
    value: Callable[[Json, Json | None], float | None]
    quartiles: Callable[[Json, Json], tuple[float, float]]
    roof: Callable[[Json], float | None]


def panels(results: Results) -> tuple[Panel, ...]:
    """Every panel with something to show, in the order of the suite."""
    metric = results.head["metric"]
    colours = {name: place for place, name in enumerate(results.backends())}
    groups: dict[str, list[Json]] = {}
    for cell in results.cells.values():
        if any(outcome["status"] == OK for outcome in cell["results"].values()):
            groups.setdefault(cell["panel"], []).append(cell)
    return tuple(_panel(name, cells, metric, colours) for name, cells in groups.items())


def mark_of(place: int) -> str:
    """The mark of the n-th backend."""
    return MARKS[(place + place // COLOURS) % len(MARKS)]


def _panel(name: str, cells: list[Json], metric: str, colours: dict[str, int]) -> Panel:
    scales = [_own(metric)]
    if any(roof_of(cell, metric) for cell in cells):
        scales.append(_share())
    numbers = all(isinstance(cell["x"], int) for cell in cells)
    make = _lines if numbers and len(cells) > 1 else _bars
    return Panel(name=name, charts=tuple(make(cells, scale, metric, colours) for scale in scales))


def _own(metric: str) -> _Scale:
    return _Scale(
        unit=UNITS[metric], value=lambda _, outcome: value_of(outcome, metric),
        quartiles=lambda _, outcome: quartiles_of(outcome, metric), roof=lambda cell: roof_of(cell, metric),
    )  # fmt: skip


def _share() -> _Scale:
    """The roofline's time over the backend's."""

    def value(cell: Json, outcome: Json | None) -> float | None:
        took = value_of(outcome, "ms")
        return None if took is None or cell["floor"] is None else cell["floor"]["seconds"] * 1e5 / took

    def quartiles(cell: Json, outcome: Json) -> tuple[float, float]:
        low, high = quartiles_of(outcome, "ms")
        return cell["floor"]["seconds"] * 1e5 / high, cell["floor"]["seconds"] * 1e5 / low

    return _Scale(unit="% of the roofline", value=value, quartiles=quartiles, roof=lambda _: 100.0)


def _lines(cells: list[Json], scale: _Scale, metric: str, colours: dict[str, int]) -> LineChart:
    cells = sorted(cells, key=lambda cell: int(cell["x"]))
    first, last = (math.log2(max(1, cells[end]["x"])) for end in (0, -1))
    values = [
        value for cell in cells for one in cell["results"].values() if (value := scale.value(cell, one)) is not None
    ]
    roofs = [scale.roof(cell) for cell in cells]
    steps = _steps(max([*values, *(roof for roof in roofs if roof is not None)]))
    top = steps[-1]

    def x(cell: Json) -> float:
        share = (math.log2(max(1, cell["x"])) - first) / ((last - first) or 1)
        return LEFT + 14 + share * (WIDTH - LEFT - RIGHT - 28)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    def marks(name: str) -> tuple[Mark, ...]:
        found = []
        for cell in cells:
            outcome = cell["results"].get(name)
            value = scale.value(cell, outcome)
            if value is not None and outcome is not None:
                low, high = scale.quartiles(cell, outcome)
                found.append(
                    Mark(x=x(cell), y=y(value), low=y(low), high=y(high), title=_title(cell, name, outcome, metric))
                )
        return tuple(found)

    drawn = [(name, place, points) for name, place in colours.items() if (points := marks(name))]
    return LineChart(
        width=WIDTH, height=HEIGHT, unit=scale.unit,
        lines=tuple(
            Line(backend=name, colour=place % COLOURS, mark=mark_of(place), path=_path([(p.x, p.y) for p in points]), marks=points)
            for name, place, points in drawn
        ),
        roof=_path([(x(cell), y(roof)) for cell, roof in zip(cells, roofs, strict=True) if roof is not None]),
        across=tuple(Tick(at=x(cell), label=_length(cell["x"])) for cell in cells),
        up=tuple(Tick(at=y(step), label=f"{step:g}") for step in steps),
    )  # fmt: skip


def _bars(cells: list[Json], scale: _Scale, metric: str, colours: dict[str, int]) -> BarChart:
    values = [
        value for cell in cells for one in cell["results"].values() if (value := scale.value(cell, one)) is not None
    ]
    roofs = [roof for cell in cells if (roof := scale.roof(cell)) is not None]
    largest = max([*values, *(roofs if metric != "ms" or scale.roof(cells[0]) == 100.0 else [])]) or 1.0
    groups, place = [], TOP
    for cell in cells:
        group = _group(cell, scale, metric, colours, place, largest)
        groups.append(group)
        place = group.end + GROUP_GAP
    return BarChart(width=WIDTH, height=place, unit=scale.unit, groups=tuple(groups))


def _group(
    cell: Json, scale: _Scale, metric: str, colours: dict[str, int], place: float, largest: float
) -> Group:  # fmt: skip
    length = (WIDTH - BAR_LEFT - BAR_RIGHT) / largest
    best = best_of(cell, metric)
    bars: list[Bar] = []
    for name, number in colours.items():
        outcome = cell["results"].get(name)
        value = scale.value(cell, outcome)
        if value is None or outcome is None:
            continue
        bars.append(
            Bar(
                backend=name, colour=number % COLOURS, y=place + LABEL_LINE + len(bars) * BAR, width=max(1.0, value * length),
                label=digits(value), title=_title(cell, name, outcome, metric), best=name == best,
            )
        )  # fmt: skip
    roof = scale.roof(cell)
    shown = None if roof is None or roof > largest else BAR_LEFT + roof * length
    return Group(
        label=str(cell["x"]), y=place, end=place + LABEL_LINE + len(bars) * BAR, bars=tuple(bars), roof=shown
    )  # fmt: skip


def _title(cell: Json, backend: str, outcome: Json, metric: str) -> str:
    """What a pointer says of a point."""
    value = value_of(outcome, metric) or 0.0
    parts = [f"{backend}, {cell['id']}: {digits(value)} {UNITS[metric]}"]
    if outcome.get("device_ms"):
        parts.append(f"{outcome['device_ms']['median']:.4g} ms on the device")
    parts.append(f"{outcome['host_ms']['median'] * 1e3:.3g} us on the host")
    if outcome.get("of_the_floor") is not None:
        parts.append(f"{outcome['of_the_floor']:.0%} of the roofline ({cell['floor']['bound']})")
    return ", ".join(parts)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points) if points else ""


def _steps(largest: float) -> tuple[float, ...]:
    """Round numbers from zero to at least `largest`, four to six of them."""
    if largest <= 0:
        return 0.0, 1.0
    size = 10.0 ** math.floor(math.log10(largest / 4))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size * 5 >= largest)
    return tuple(step * number for number in range(math.ceil(largest / step - 1e-9) + 1))


def _length(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens >= 1024 and tokens % 1024 == 0 else str(tokens)
