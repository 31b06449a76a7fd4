"""`explain`: a decision as text, without taking an unfit or missing backend for an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attn_backends.errors import AttnBackendsError
from attn_backends.selector.select import select

if TYPE_CHECKING:
    from attn_backends.request import Request
    from attn_backends.selector.decision import Decision


def explain(request: Request, **arguments: Any) -> str:
    """What `select(request, **arguments)` decides and why not the others, as text."""
    return decide(request, **arguments).explain()


def decide(request: Request, **arguments: Any) -> Decision:
    """The decision even where `select` raises one's error: a forced backend that does not fit, a forbidden reference."""
    try:
        return select(request, **arguments)
    except AttnBackendsError as error:
        if error.decision is None:
            raise
        return error.decision
