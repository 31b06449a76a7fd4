"""`attn-backends log show`: the decisions of a log, one line each, the latest last."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from attn_backends.cli.log_source import filter_options, logs_argument, records_of
from attn_backends.cli.options import json_option
from attn_backends.cli.screen import BAD, GOOD, QUIET, WARN, console, print_json, table, text
from attn_backends.selector.log.line import winner_of
from attn_backends.selector.log.phrase import device_phrase, request_phrase, word

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

WIDE = 120  # columns from which the request has a column of its own
ID = 10  # characters of an id that are shown; `log why` takes any unambiguous start


@click.command("show")
@logs_argument
@filter_options
@click.option("-n", "--last", type=click.IntRange(min=0), default=50, help="Only the last N; 0 is all.  [50]")
@json_option
def command(logs: tuple[str, ...], last: int, as_json: bool, **filters: Any) -> None:
    """The decisions of a log, one line each, the latest last."""
    found = deque(records_of(logs, **filters), maxlen=last or None)
    if as_json:
        print_json(list(found))
    elif found:
        screen = console()
        screen.print((_wide if screen.width >= WIDE else _narrow)(found))
    else:
        click.echo("no decision passes these filters", err=True)


def _wide(records: Iterable[Any]) -> Table:
    made = table("time (UTC)", "id", "backend", "by", "request", "device")
    for column in made.columns[:4]:
        column.no_wrap = True
    for record in records:
        by = word(record.get("source") or "-")
        made.add_row(
            *_when(record), _backend(record), by, request_phrase(record["request"]), device_phrase(record["device"])
        )
    return made


def _narrow(records: Iterable[Any]) -> Table:
    """The request below the backend."""
    made = table("time (UTC)", "id", "decision", "device")
    for column in made.columns[:2]:
        column.no_wrap = True
    for record in records:
        by = f" by {word(record['source'])}" if record.get("source") else ""
        told = text(_backend(record), by, (f"\n{request_phrase(record['request'])}", QUIET))
        made.add_row(*_when(record), told, device_phrase(record["device"]))
    return made


def _when(record: Any) -> tuple[Text, str]:
    return text((str(record.get("time", "-"))[5:19].replace("T", " "), QUIET)), record["id"][:ID]


def _backend(record: Any) -> Text:
    if not record["backend"]:
        return text(("none", BAD))
    reference = (winner_of(record) or {}).get("tier") == "reference"
    return text((word(record["backend"]), WARN if reference else GOOD))
