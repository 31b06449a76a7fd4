"""What commands print with: a rich console for people, JSON for machines, and the few styles that all of them share.

Rich is imported when something is drawn. Nothing is parsed as markup: texts of manifests and logs are shown as they are.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

STATUS_STYLES = {"selected": "bold green", "outranked": "dim", "rejected": "red"}
CODE, NAME, QUIET, HEAD, WARN, BAD, GOOD = "yellow", "bold", "dim", "bold cyan", "yellow", "bold red", "green"


def console() -> Console:
    """A console on stdout as it is now: 80 columns and no colours where that is no terminal; NO_COLOR is kept."""
    from rich.console import Console

    from attn_backends.cli.trimmed import Trimming

    made = Console(highlight=False, markup=False, emoji=False)
    made.push_render_hook(Trimming())
    return made


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(data, indent=2, default=str))


def table(*heads: str) -> Table:
    """A table in the house style: a light rule under the head, no frame."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, header_style=HEAD, show_edge=False, pad_edge=False)
    for head in heads:
        made.add_column(head, overflow="fold")
    return made


def facts(rows: list[tuple[str, str | Text]]) -> Table:
    """Two columns without a head: what, and its value."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2), pad_edge=False)
    made.add_column(style=HEAD, no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value)
    return made


def text(*parts: str | Text | tuple[str, str]) -> Text:
    """Pieces of text, each plain or (text, style)."""
    from rich.text import Text

    return Text.assemble(*parts)
