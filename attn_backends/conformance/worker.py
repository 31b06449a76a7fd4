"""The process that runs items, one message in, one out: `python -m attn_backends.conformance.worker`.

One thread of torch, since several workers share the machine. Started by `isolation` only.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from attn_backends.conformance.channel import Message, serve


def prepare(job: Message) -> Callable[[Message], Message]:
    """A context for the job's backend; the answer to an item is its result, that to {"plan": level} that it can be made."""
    run_setup(job["setup"])
    import torch

    from attn_backends.conformance.checks import context_of
    from attn_backends.conformance.engine import run_with
    from attn_backends.conformance.item import Item, parse_item
    from attn_backends.conformance.plan import plan

    torch.set_num_threads(job["threads"])
    context = context_of(job["backend"], job["device"])

    def answer(asked: Message) -> Message:
        if "plan" in asked:
            plan(context.manifest, asked["plan"], context.facts)
            return {"planned": asked["plan"]}
        check, case = parse_item(asked["id"])
        return run_with(context, Item(check, case, tuple(asked["clauses"]))).to_json()

    return answer


def run_setup(setup: str | None) -> None:
    """Call "module:function", which registers backends in this process."""
    if setup:
        module, _, function = setup.partition(":")
        getattr(importlib.import_module(module), function)()


if __name__ == "__main__":
    serve(prepare)
