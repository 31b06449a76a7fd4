"""A timeline as text, one row per unit, and as SVG. Both say the same: which query tile, which piece of work, when."""

from __future__ import annotations

from html import escape

from attn_backends.pipeline.timeline import COPY, UNITS, Task, Timeline

COLOURS = {"S": "#4c78a8", "P": "#72b7b2", "E": "#f58518", "K": "#b8b0ac", "V": "#9d9892"}
LEFT, TOP, ROW, GAP = 96, 34, 30, 8


def draw_text(timeline: Timeline, width: int = 100) -> list[str]:
    """Three lines of `width` characters behind the unit's name; a piece that is too short for its name has its first letter.

    Where not every product and softmax has a character of its own, the end is left out: see `drawn`.
    """
    scale = width / (timeline.clocks * drawn(timeline, width))
    lines = []
    for unit in UNITS:
        cells = [" "] * width
        for task in (task for task in timeline.tasks if task.unit == unit):
            begin, end = (min(width, int(clock * scale + 0.5)) for clock in (task.start, task.end))
            cells[begin:end] = _filled(_name(task), end - begin)
        lines.append(f"{unit:<12}{''.join(cells)}".rstrip())
    return lines


def drawn(timeline: Timeline, width: int) -> float:
    """The share of the timeline, from its begin, for which so many characters are enough."""
    shortest = min(task.end - task.start for task in timeline.tasks if task.unit != COPY)
    return min(1.0, width * shortest / timeline.clocks)


def draw_svg(timeline: Timeline, width: int = 900) -> str:
    """A picture of its own, `width` pixels wide."""
    scale = (width - LEFT - GAP) / timeline.clocks
    height = TOP + len(UNITS) * (ROW + GAP)
    plan = timeline.plan
    title = f"{timeline.chip.name}, heads of {plan.head_dim}: {plan.name}, overlap {timeline.overlap:.2f}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f"<title>{escape(title)}</title>",
        f'<text x="{GAP}" y="20" font-size="13">{escape(title)}</text>',
    ]
    for number, unit in enumerate(UNITS):
        top = TOP + number * (ROW + GAP)
        parts.append(f'<text x="{GAP}" y="{top + 19}">{unit}</text>')
        parts += [_box(task, top, scale) for task in timeline.tasks if task.unit == unit]
    return "\n".join([*parts, "</svg>", ""])


def _box(task: Task, top: int, scale: float) -> str:
    left, width = LEFT + task.start * scale, (task.end - task.start) * scale
    name = f'<text x="{left + width / 2:.1f}" y="{top + 19}" text-anchor="middle" fill="#fff">{_name(task)}</text>'
    shade = 1 - 0.25 * task.tile
    rect = (
        f'<rect x="{left:.1f}" y="{top}" width="{max(width - 0.5, 0.5):.1f}" height="{ROW}" fill="{COLOURS[task.kind]}" '
        f'fill-opacity="{shade:g}"/>'
    )
    return rect + (name if width > 16 else "")


def _name(task: Task) -> str:
    """`S0.3`: scores of query tile 0, step 3; copies serve all query tiles."""
    return f"{task.kind}{task.step}" if task.kind in "KV" else f"{task.kind}{task.tile}.{task.step}"


def _filled(name: str, width: int) -> list[str]:
    """`S0.0--|`; where there is no room for that, `S-|`, `S|`, `S`."""
    if width < len(name) + 1:
        name = name[:1]
    return list((name.ljust(width - 1, "-") + "|")[:width])
