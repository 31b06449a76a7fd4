"""`attn-backends log ...`: the group of commands that read a decision log. Each stands in a file of its own."""

from __future__ import annotations

import click

from attn_backends.cli.lazy import Door, LazyGroup

HOME = "attn_backends.cli"


@click.group(
    "log",
    cls=LazyGroup,
    doors={
        "show": Door(f"{HOME}.log_show", "The decisions, one line each; filters."),
        "why": Door(f"{HOME}.log_why", "One decision in full, by the start of its id."),
        "stats": Door(f"{HOME}.log_stats", "Counts: backends, sources, devices, refusals by reason."),
        "diff": Door(f"{HOME}.log_diff", "Two runs against each other, request by request."),
        "replay": Door(f"{HOME}.log_replay", "Decide every request again on this machine, report what differs."),
        "export": Door(f"{HOME}.log_export", "One self-contained HTML page."),
    },
)
def command() -> None:
    """Read a decision log.

    A log is a folder of JSON lines, written while ATTN_BACKENDS_LOG names it (1 is the user's log folder), or single
    files of it. Without a folder, these commands read the one that ATTN_BACKENDS_LOG names, else the user's.
    """
