"""`attn-backends doctor`: what is installed, which device is here, what is broken, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from attn_backends.cli.options import json_option
from attn_backends.cli.screen import BAD, GOOD, HEAD, QUIET, WARN, console, print_json, text

if TYPE_CHECKING:
    from rich.table import Table

    from attn_backends.cli.finding import Finding

STYLES = {"ok": GOOD, "note": QUIET, "warn": WARN, "bad": BAD}


@click.command("doctor")
@click.option("--no-load", is_flag=True, help="Do not load backends: a second instead of the time that torch takes.")
@json_option
@click.pass_context
def command(ctx: click.Context, no_load: bool, as_json: bool) -> None:
    """What is installed, which device is here, what is broken, and what to do about it.

    Backends are loaded in a process of their own. Exits 1 if something is broken.
    """
    from attn_backends.cli.findings import examine

    found = examine(load=not no_load)
    broken = [one for one in found if one.level == "bad"]
    if as_json:
        print_json({"healthy": not broken, "findings": [one.to_json() for one in found]})
    else:
        _draw(found)
    if broken:
        ctx.exit(1)


def _draw(found: Sequence[Finding]) -> None:
    screen = console()
    areas = dict.fromkeys(one.area for one in found)
    for area in areas:
        screen.print(text((area, HEAD)))
        screen.print(_area([one for one in found if one.area == area]))
        screen.print()
    counts = {level: sum(one.level == level for one in found) for level in ("bad", "warn")}
    verdict = ("healthy", GOOD) if not counts["bad"] else (f"{counts['bad']} broken", BAD)
    screen.print(text(verdict, f", {counts['warn']} warning{'s' if counts['warn'] != 1 else ''}"))


def _area(found: Sequence[Finding]) -> Table:
    from rich.table import Table

    made = Table.grid(padding=(0, 2), pad_edge=False)
    made.add_column(no_wrap=True)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for (level, said, hint), subjects in _together(found).items():
        more = (f"\n{hint}", "italic") if hint else ""
        made.add_row(text((f"  {level}", STYLES[level])), "\n".join(subjects), text(said, more))
    return made


def _together(found: Sequence[Finding]) -> dict[tuple[str, str, str], list[str]]:
    """Subjects by what is said of them: seven backends that lack one package are one piece of news."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in found:
        groups.setdefault((one.level, one.text, one.hint), []).append(one.subject)
    return groups
