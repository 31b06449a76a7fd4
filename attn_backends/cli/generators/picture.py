"""`docs/images/explain.svg`: what `attn-backends explain` draws, for the README. Built-in backends and a pretended GPU only."""

from __future__ import annotations

import io

from attn_backends.cli.assumptions import assume
from attn_backends.cli.record_view import record_view
from attn_backends.registry.registry import Registry
from attn_backends.request import Request
from attn_backends.selector.explain import decide

ASKED = {"causal": True, "softcap": 50.0}
COMMAND = "attn-backends explain --device h200 --causal --softcap 50"
WIDTH = 96


def render() -> str:
    """The picture."""
    from rich.console import Console

    request = Request(**assume(ASKED), **ASKED)
    decision = decide(request, device="h200", registry=Registry(autoload=False))
    screen = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor", highlight=False,
        markup=False, _environ={},
    )  # fmt: skip
    for part in record_view(decision.to_json(), more=[], every=False):
        screen.print(part)
    return screen.export_svg(title=COMMAND, unique_id="explain")
