"""What a calibration did, on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attn_backends.cli.screen import BAD, GOOD, NAME, QUIET, WARN, console, table, text

if TYPE_CHECKING:
    from attn_backends.calibrate.points import Points
    from attn_backends.calibrate.run import Ran

MOST_REASONS = 5


def print_ran(ran: Ran, path: Path, points: Points) -> None:
    """Counts, what became of each backend, what is left."""
    screen = console()
    screen.print(
        text(
            (f"{ran.timed} shapes timed", GOOD if ran.timed else QUIET), f" in {ran.seconds:.0f} s",
            f" ({ran.ahead_s:.0f} s of them to compile), " if ran.ahead_s else ", ",
            f"{ran.known} known before, {ran.no_choice} with nothing to choose",
            (f", {ran.left} left: run again to go on" if ran.left else "", WARN),
        )
    )  # fmt: skip
    if ran.statuses:
        screen.print(_statuses(ran))
    for name, whys in sorted(ran.spared.items()):
        reasons = "; ".join(f"{why}: {count}" for why, count in whys.items())
        screen.print(text((name, NAME), (f" was not tried: {reasons}", QUIET)))
    for name, why in ran.gone.items():
        screen.print(text((name, BAD), f" is excluded: {why}"))
    for what, count in list(points.left_out.items())[:MOST_REASONS]:
        screen.print(text((f"left out: {count} requests with {what}", WARN)))
    screen.print(text((f"times are in {path.name}; every new process ranks by them", QUIET)))


def _statuses(ran: Ran) -> object:
    made = table("backend", "timed", "not timed")
    for name, statuses in sorted(ran.statuses.items()):
        others = ", ".join(f"{status} {count}" for status, count in statuses.items() if status != "ok")
        made.add_row(text((name, NAME)), str(statuses.get("ok", 0)), others)
    return made
