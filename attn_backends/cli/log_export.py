"""`attn-backends log export`: a log as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attn_backends.cli.log_source import filter_options, logs_argument, records_of
from attn_backends.cli.options import json_option
from attn_backends.cli.screen import print_json


@click.command("export")
@logs_argument
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), default="decisions.html", help="The page.  [decisions.html]"
)
@click.option("--title", default="Attention decisions", help="Its title.")
@filter_options
@json_option
def command(logs: tuple[str, ...], output: str, title: str, as_json: bool, **filters: Any) -> None:
    """One self-contained HTML page: counts, why-not table, every decision. Needs the extra [report]."""
    from attn_backends.selector.log.html import render_html

    records = list(records_of(logs, **filters))
    page = render_html(records, title=title)
    Path(output).write_text(page, encoding="utf-8")
    if as_json:
        print_json({"page": output, "records": len(records), "bytes": len(page.encode())})
    else:
        click.echo(f"{output}: {len(records):,} records, {len(page.encode()) / 1024:,.0f} KiB")
