"""Which log the `log` commands read, and with which filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from attn_backends.cli.failure import Failure
from attn_backends.cli.options import BACKEND
from attn_backends.selector.log.reader import Record, keep, read

logs_argument = click.argument("logs", metavar="[LOG]...", nargs=-1, type=click.Path())


def filter_options(function: Callable[..., None]) -> Callable[..., None]:
    """The filters of `keep`."""
    for option in reversed(_FILTERS):
        function = option(function)
    return function


def records_of(logs: Sequence[str], **filters: Any) -> Iterator[Record]:
    """The records of the named logs, or of the default one, that pass the filters."""
    try:
        return keep(read(list(logs) or [str(default_log())]), **filters)
    except FileNotFoundError as error:
        hint = "run something with ATTN_BACKENDS_LOG=FOLDER, then `attn-backends log show FOLDER`"
        raise Failure(f"no decision log at {error.filename}", hint) from error
    except ValueError as error:
        raise Failure(f"--since: {error}") from error


def default_log() -> Path:
    """The folder that ATTN_BACKENDS_LOG names, else the user's log folder."""
    from attn_backends.registry.knobs import current_knobs
    from attn_backends.selector.announce import log_folder

    return log_folder(current_knobs().log or "1")


_FILTERS = (
    click.option("--backend", type=BACKEND, help="Chosen backend, or none."),
    click.option("--rejected", type=BACKEND, help="Decisions that refused this backend."),
    click.option("--code", help="Decisions that refused some backend (with --rejected: that one) for this reason."),
    click.option("--phase", type=click.Choice(("prefill", "append", "decode", "mixed")), help="Phase of the request."),
    click.option("--since", help="ISO time (UTC), or an age: 90s, 30m, 2h, 7d."),
)
