"""`attn-backends log why ID`: one decision of a log in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from attn_backends.cli.evidence_view import evidence_lines
from attn_backends.cli.log_source import default_log, logs_argument, records_of
from attn_backends.cli.options import json_option
from attn_backends.cli.screen import console, print_json
from attn_backends.selector.log.evidence import evidence_of
from attn_backends.selector.log.line import logged_phrase
from attn_backends.selector.log.reader import find

if TYPE_CHECKING:
    from rich.text import Text


@click.command("why")
@click.argument("identity", metavar="ID")
@logs_argument
@click.option("--all-reasons", is_flag=True, help="Every reason, with the manifest entry it comes from.")
@json_option
def command(identity: str, logs: tuple[str, ...], all_reasons: bool, as_json: bool) -> None:
    """One decision in full: ID is the start of its id.

    The evidence says how far it got: selected, executed (launches were counted under its id) or profiled (kernels and
    their time were attributed to it). It is written beside the log when a process ends, or a profile.
    """
    record = find(records_of(logs), identity)
    evidence = evidence_of(record["id"], list(logs) or [default_log()])
    if as_json:
        print_json({**record, "evidence": evidence})
        return
    from attn_backends.cli.record_view import record_view

    logged = logged_phrase(record)
    more: list[tuple[str, str | Text]] = [("logged", logged)] if logged else []
    screen = console()
    for part in record_view(record, more=[*more, *evidence_lines(evidence)], every=all_reasons):
        screen.print(part)
