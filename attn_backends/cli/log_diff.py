"""`attn-backends log diff A B`: two runs against each other, request by request."""

from __future__ import annotations

from pathlib import Path

import click

from attn_backends.cli.log_source import records_of
from attn_backends.cli.options import json_option
from attn_backends.cli.screen import NAME, console, print_json, text
from attn_backends.selector.log.compare import Diff, diff, diff_text


@click.command("diff")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@json_option
@click.pass_context
def command(ctx: click.Context, a: str, b: str, as_json: bool) -> None:
    """Two runs against each other: who serves a request now, who served it, and what changed between.

    Exits 1 if a request is answered differently, or was met by one run alone.
    """
    found = diff(records_of([a]), records_of([b]))
    if as_json:
        print_json(found.to_json())
    else:
        _draw(found, *_names(a, b))
    if found.changed or found.only_a or found.only_b:
        ctx.exit(1)


def _names(a: str, b: str) -> tuple[str, str]:
    """What to call the two logs: their last component, where that tells them apart."""
    short = Path(a).name, Path(b).name
    return short if short[0] != short[1] else (a, b)


def _draw(found: Diff, a: str, b: str) -> None:
    """The log's own text, the turns coloured."""
    screen = console()
    for line in diff_text(found, a=a, b=b).splitlines():
        style = {"- ": "red", "+ ": "green"}.get(line.strip()[:2], "" if line.startswith(" ") else NAME)
        screen.print(text((line, style)), soft_wrap=True)
