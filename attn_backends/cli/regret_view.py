"""The regret report on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attn_backends.bench.model_error import TIE
from attn_backends.calibrate.picks import COST_MODEL, GROUNDS, MEASURED
from attn_backends.cli.screen import HEAD, QUIET, WARN, console, facts, table, text

if TYPE_CHECKING:
    from rich.table import Table

    from attn_backends.calibrate.regret import Report

WORST = 5  # shapes that are named


def print_report(made: Report, left: int, path: Path) -> None:
    """Regret by grounds and group, then what else the file says."""
    screen = console()
    if not made.shapes:
        screen.print(text(("no shape here has a choice of backends: no regret", WARN)))
        return
    screen.print(_regrets(made))
    screen.print(text(("geometric mean, and worst, of the pick's time over the best", QUIET)))
    screen.print()
    screen.print(facts(list(_further(made))))
    screen.print()
    grounds = "by measured time" if made.measured else "by the cost model: none had a measured time"
    screen.print(text((f"worst picks {grounds}", HEAD)))
    screen.print(_worst(made))
    for name, whys in made.capped.items():
        for why, count in whys.items():
            screen.print(text((f"{name} was left out of {count} shapes: {why}", WARN)))
    if left:
        screen.print(text((f"{left} cells are left: run again to go on", WARN)))
    screen.print(text((f"written: {path.name}, shape by shape", QUIET)))


def _regrets(made: Report) -> Table:
    shown = table("shapes", "", *(f"by {name}" for name in GROUNDS))
    for group in (None, *made.groups):
        found = {name: made.summary(name, group) for name in GROUNDS}
        counts = max((one.shapes for one in found.values() if one is not None), default=0)
        cells = ["-" if one is None else f"{one.mean:.3f}  {one.worst:.2f}" for one in found.values()]
        shown.add_row(group or "all", str(counts), *cells)
    return shown


def _further(made: Report) -> list[tuple[str, str]]:
    model = made.summary(COST_MODEL)
    near, of = made.peers(TIE)
    exactly, _ = made.peers(0.0)
    rows = [
        ("picked by measured time", f"{made.measured} of {len(made.shapes)}; the others by what stands below it"),
        (
            "no choice",
            f"{made.alone} shapes that one backend serves alone, {made.unserved} that none does: not counted",
        ),
        ("as fast as the best peer", f"{near} of {of} within 2 %, {exactly} exactly (or the peer itself)"),
    ]
    if model is not None:
        rows.append(("cost model's first is best", f"{model.right} of {model.shapes} within 2 %"))
    missing = {name: count for name, count in made.untimed.items() if count}
    if missing:
        rows.append(("picks without a time", ", ".join(f"by {name} {count}" for name, count in missing.items())))
    return rows


def _worst(made: Report) -> Table:
    shown = table("regret", "picked", "best", "shape")
    timed = [(value, one) for one in made.shapes if (value := one.regret(MEASURED)) is not None]
    for value, one in sorted(timed, key=lambda pair: -pair[0])[:WORST]:
        shown.add_row(f"{value:.3f}", str(one.picks[MEASURED]), one.best, one.id)
    return shown
