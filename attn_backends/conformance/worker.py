"""The process that runs items, one message in, one out: `python -m attn_backends.conformance.worker`.

A result comes with `spent`: whether its item has left a GPU on which nothing runs any more.

One thread of torch, since several workers share the machine. Started by `isolation` only.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace

from attn_backends.conformance.channel import Message, serve
from attn_backends.conformance.outcome import Outcome, Result


def prepare(job: Message) -> Callable[[Message], Message]:
    """A context for the job's backend; the answer to an item is its result, that to {"plan": level} that it can be made."""
    run_setup(job["setup"])
    import torch

    from attn_backends.conformance.checks import CHECKS, context_of
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
        result = run_with(context, Item(check, case, tuple(asked["clauses"])))
        broken = broken_device(job["device"])
        if CHECKS[check].kind != "probe":  # which tries what was never promised: whatever it breaks is a refusal
            result = unless_broken(result, broken)
        return {**result.to_json(), "spent": broken is not None}

    return answer


def broken_device(device: str) -> str | None:
    """What a GPU says once a kernel has gone astray, to every later call of its process; None of one that is well."""
    import torch

    if not device.startswith("cuda"):
        return None
    try:
        torch.cuda.synchronize(device)
    except Exception as error:  # noqa: BLE001  # whatever it is, nothing more can be run here
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return None


def unless_broken(result: Result, broken: str | None) -> Result:
    """The same result, or CRASH where an item that seemed well has left a device that no other can use."""
    if broken is None or result.outcome.bad:
        return result
    return replace(result, outcome=Outcome.CRASH, message=f"it left a device that cannot be used: {broken}")


def run_setup(setup: str | None) -> None:
    """Call "module:function", which registers backends in this process."""
    if setup:
        module, _, function = setup.partition(":")
        getattr(importlib.import_module(module), function)()


if __name__ == "__main__":
    serve(prepare)
