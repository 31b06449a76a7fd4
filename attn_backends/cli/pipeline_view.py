"""Pipelines on the screen: the budget table, the overlap table, and each schedule drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attn_backends.cli.piped import Piped
from attn_backends.cli.screen import BAD, GOOD, HEAD, NAME, QUIET, table, text
from attn_backends.pipeline.drawing import draw_text, drawn
from attn_backends.pipeline.timeline import MATRIX

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

NAMED = 12  # characters before a row of a drawing


def pipeline_view(found: Sequence[Piped], width: int) -> Iterator[RenderableType]:
    """Everything, top to bottom; drawings as wide as the screen."""
    first = found[0]
    yield text((f"{first.budget.chip.name}, heads of {first.plan.head_dim}, {first.plan.keys} keys per step", HEAD))
    yield ""
    yield from _budgets(found)
    yield ""
    yield _overlaps(found)
    if first.waves is not None:
        yield ""
        yield _waves(found)
    room = max(40, width - NAMED - 1)
    for one in found:
        share = drawn(one.timeline, room)
        yield ""
        yield text((one.plan.name, NAME), (f", the first {share:.0%} of it" if share < 1 else "", QUIET))
        yield from draw_text(one.timeline, room)
    yield text(("S scores, E softmax, P weights times V, by tile and step; K, V copies by step", QUIET))


def _budgets(found: Sequence[Piped]) -> Iterator[RenderableType]:
    """What each schedule takes, and below it what there is; then, in words, what does not fit."""
    lines = found[0].budget.lines
    made = table("schedule", *(_broken(line.resource) for line in lines), "barriers", "per\nSM", "fits")
    for column in made.columns[1:-1]:
        column.justify = "right"
    limits = [{one.budget.lines[place].limit for one in found} for place in range(len(lines))]
    for one in found:
        budget = one.budget
        cells = [
            text(
                (f"{line.used:,}", "" if line.fits else BAD), ("" if len(limit) == 1 else f" of {line.limit:,}", QUIET)
            )
            for line, limit in zip(budget.lines, limits, strict=True)
        ]
        verdict = text(("yes", GOOD) if budget.fits else ("no", BAD))
        made.add_row(text((one.plan.name, NAME)), *cells, str(budget.barriers), str(budget.resident), verdict)
    there = [f"{next(iter(limit)):,}" if len(limit) == 1 else "" for limit in limits]
    made.add_row(*[text((cell, QUIET)) for cell in ("there is", *there)])
    yield made
    for one in found:
        for line in one.budget.lines:
            if not line.fits:
                taken = f"{line.used:,} of {line.limit:,} {line.unit}"
                yield text((one.plan.name, NAME), (" does not fit: ", BAD), f"{line.resource} {taken}")


def _broken(head: str) -> str:
    """A head over two lines, or shorter, so that numbers decide how wide its column is."""
    return {"registers": "regs"}.get(head, head).replace(" ", "\n", 1)


def _overlaps(found: Sequence[Piped]) -> Table:
    made = table("schedule", "overlap\npossible", "\nmodelled", _broken(MATRIX), "one tile\nshorter")
    for column in made.columns[1:]:
        column.justify = "right"
    for one in found:
        line = one.timeline
        shorter = "" if one.uneven is None else f"{one.uneven.rate:.0%}"
        made.add_row(
            text((one.plan.name, NAME)), f"x{line.bound:.2f}", f"x{line.overlap:.2f}", f"{line.rate:.0%}", shorter
        )
    return made


def _waves(found: Sequence[Piped]) -> Table:
    made = table("schedule", "blocks", "waves", "balance")
    for column in made.columns[1:]:
        column.justify = "right"
    for one in found:
        if one.waves is not None:
            cells = (f"{one.waves.tickets:,}", f"{one.waves.waves:,.1f}", f"{one.waves.balance:.0%}")
            made.add_row(text((one.plan.name, NAME)), *cells)
    return made
