"""Pipelines on the screen: the budget table, the overlap table, and each schedule drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attn_backends.cli.piped import Piped
from attn_backends.cli.screen import BAD, GOOD, HEAD, NAME, QUIET, table, text
from attn_backends.pipeline.drawing import draw_text
from attn_backends.pipeline.timeline import MATRIX

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

NAMED = 12  # characters before a row of a drawing


def pipeline_view(found: Sequence[Piped], width: int) -> Iterator[RenderableType]:
    """Everything, top to bottom; drawings as wide as the screen."""
    first = found[0]
    yield text((f"{first.budget.chip.name}, heads of {first.plan.head_dim}, {first.plan.keys} keys per step", HEAD))
    yield ""
    yield _budgets(found)
    yield ""
    yield _overlaps(found)
    for one in found:
        yield ""
        yield text((one.plan.name, NAME))
        yield from draw_text(one.timeline, max(40, width - NAMED - 1))
    yield text(("S scores, E softmax, P weights times V, by query tile and step; K, V copies by step", QUIET))


def _budgets(found: Sequence[Piped]) -> Table:
    made = table("schedule", *(line.resource for line in found[0].budget.lines), "barriers", "per SM", "fits")
    for column in made.columns[1:-1]:
        column.justify = "right"
    for one in found:
        budget = one.budget
        cells = [
            text((f"{line.used:,}", "" if line.fits else BAD), (f" / {line.limit:,}", QUIET)) for line in budget.lines
        ]
        short = [line.resource for line in budget.lines if not line.fits]
        verdict = text((f"no: {', '.join(short)}", BAD) if short else ("yes", GOOD))
        made.add_row(text((one.plan.name, NAME)), *cells, str(budget.barriers), str(budget.resident), verdict)
    return made


def _overlaps(found: Sequence[Piped]) -> Table:
    heads = ["schedule", "overlap possible", "modelled", MATRIX, "one tile shorter"]
    if found[0].waves is not None:
        heads += ["blocks", "waves", "balance"]
    made = table(*heads)
    for column in made.columns[1:]:
        column.justify = "right"
    for one in found:
        made.add_row(text((one.plan.name, NAME)), *_numbers(one))
    return made


def _numbers(one: Piped) -> list[str | Text]:
    line = one.timeline
    cells: list[str | Text] = [f"x{line.bound:.2f}", f"x{line.overlap:.2f}", f"{line.rate:.0%}"]
    cells.append("" if one.uneven is None else f"{one.uneven.rate:.0%}")
    if one.waves is not None:
        cells += [f"{one.waves.tickets:,}", f"{one.waves.waves:.1f}", f"{one.waves.balance:.0%}"]
    return cells
