"""`attn-backends log stats`: what a log says as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from attn_backends.cli.log_source import filter_options, logs_argument, records_of
from attn_backends.cli.options import json_option
from attn_backends.cli.screen import BAD, CODE, GOOD, NAME, QUIET, console, facts, print_json, table, text
from attn_backends.selector.log.counts import NO_BACKEND, Stats, stats
from attn_backends.selector.log.phrase import printable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

BAR = 20  # characters of a bar that is all of it


@click.command("stats")
@logs_argument
@filter_options
@json_option
def command(logs: tuple[str, ...], as_json: bool, **filters: Any) -> None:
    """Counts: backends, sources, devices, and what was refused for which reason."""
    counted = stats(records_of(logs, **filters))
    if as_json:
        print_json(counted.to_json())
        return
    screen = console()
    screen.print(facts(_head(counted)))
    for made in (_shares("chosen", counted.backends), _shares("by", counted.sources), _refusals(counted)):
        if made.row_count:
            screen.print()
            screen.print(made)


def _head(counted: Stats) -> list[tuple[str, str | Text]]:
    return [
        ("records", f"{counted.records:,} by {counted.processes:,} process{'es' if counted.processes != 1 else ''}"),
        ("decisions", f"{counted.decisions:,} distinct, for {counted.requests:,} distinct requests"),
        ("devices", printable(", ".join(f"{name} {count:,}" for name, count in counted.devices.items())) or "-"),
        ("time", f"{counted.first} to {counted.last}" if counted.first else "-"),
        ("reference", f"{counted.reference:,} ({counted.reference_share:.1%} of what was served)"),
        ("unserved", f"{counted.unserved:,}"),
    ]


def _shares(head: str, counts: Mapping[str, int]) -> Table:
    total = sum(counts.values()) or 1
    made = table(head, "count", "share", "")
    made.columns[1].justify = made.columns[2].justify = "right"
    for name, count in counts.items():
        style = BAD if name == NO_BACKEND else GOOD
        bar = "#" * max(1, round(BAR * count / total))
        made.add_row(text((printable(name), NAME)), f"{count:,}", f"{count / total:.1%}", text((bar, style)))
    return made


def _refusals(counted: Stats) -> Table:
    made = table("refused", "for (decisions)")
    for name, codes in counted.rejections.items():
        said: list[str | tuple[str, str]] = []
        for code, count in codes.items():
            said += [", " if said else "", (printable(code), CODE), (f" {count:,}", QUIET)]
        made.add_row(text((printable(name), NAME)), text(*said))
    return made
