"""`tell`: a line on the package's logger that can never fail a call, whatever filters and handlers a program put there."""

from __future__ import annotations

import logging
import sys
import traceback

LOG = logging.getLogger("attn_backends")


def tell(level: int, text: str, *values: object) -> None:
    """Log a line; what a filter or handler raises goes to stderr, as logging itself does with a failed handler."""
    try:
        LOG.log(level, text, *values)
    except Exception:  # noqa: BLE001  # the program's own code
        if logging.raiseExceptions and sys.stderr is not None:
            traceback.print_exc()
