"""`attn-backends log why ID`: one decision of a log in full."""

from __future__ import annotations

import click

from attn_backends.cli.log_source import logs_argument, records_of
from attn_backends.cli.options import json_option
from attn_backends.cli.screen import console, print_json
from attn_backends.selector.log.line import logged_phrase
from attn_backends.selector.log.reader import find


@click.command("why")
@click.argument("identity", metavar="ID")
@logs_argument
@click.option("--all-reasons", is_flag=True, help="Every reason, with the manifest entry it comes from.")
@json_option
def command(identity: str, logs: tuple[str, ...], all_reasons: bool, as_json: bool) -> None:
    """One decision in full: ID is the start of its id."""
    record = find(records_of(logs), identity)
    if as_json:
        print_json(record)
        return
    from attn_backends.cli.record_view import record_view

    logged = logged_phrase(record)
    screen = console()
    for part in record_view(record, more=[("logged", logged)] if logged else [], every=all_reasons):
        screen.print(part)
