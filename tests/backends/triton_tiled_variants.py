"""How many kernels the suite makes Triton compile for triton_tiled on an H200, counted on a machine without one.

    python -m tests.backends.triton_tiled_variants FOLDER      prints JSON: kernel -> how many; FOLDER must not exist

The suite's own items of level `full` run on a CPU against a plugin with triton_tiled's boxes, whose kernels are never
compiled: Triton's hook takes each that would be. Outputs are zeros, and what a check says of them does not matter.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from triton import knobs

from attn_backends.backends.triton_tiled import adapter
from attn_backends.backends.triton_tiled.compile_only import _standing_in, target_of
from attn_backends.call import Call, Grads
from attn_backends.conformance.checks import CHECKS, Context, context_of
from attn_backends.conformance.checks.calling import attend, attend_poisoned, gradients, upstream
from attn_backends.conformance.engine import run_with
from attn_backends.conformance.inputs import make_inputs
from attn_backends.conformance.item import Item
from attn_backends.conformance.plan import plan
from tests.backends.cpu_plugin import lay_out

HERE = "tests.backends.triton_tiled_variants"
CHANGES = (
    ('arch = { min = "8.0", max = "12.1" }', 'arch = "any"'),
    ('graph = "always"\n', ""),
    ('check = "attn_backends.backends.triton_tiled.limits:check"\n', ""),
    ("attn_backends.backends.triton_tiled.adapter:run", f"{HERE}:run"),
    ("attn_backends.backends.triton_tiled.adapter:backward", f"{HERE}:backward"),
)
found: dict[str, str] = {}  # all that decides a kernel's code: its name


def take(*, fn: Any, compile: dict[str, Any], **_more: Any) -> bool:  # noqa: A002  # Triton's name
    """Note a kernel instead of compiling it."""
    decisive = ("signature", "constants", "configs", "num_warps", "num_stages")
    name = fn.jit_function.__name__
    found[name + " ".join(str(compile[key]) for key in decisive)] = name
    return True


@contextmanager
def taking() -> Iterator[None]:
    """Launch for an H200, and launch nothing."""
    with _standing_in(target_of("sm_90")), knobs.runtime.scope():
        knobs.runtime.jit_cache_hook = take
        yield


def run(call: Call) -> None:
    """triton_tiled's forward, but zeros."""
    with taking():
        adapter.run(call)
    call.out.zero_()
    if call.lse is not None:
        call.lse.zero_()


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """triton_tiled's backward, but whatever lies in memory."""
    with taking():
        return adapter.backward(call, d_out, d_lse)


def visit(context: Context, item: Item) -> None:
    """Launch what the item launches; without the oracle's share of the two most frequent checks."""
    if CHECKS[item.check].kind in ("refusal", "probe") or item.check == "compiled":
        return
    if item.check == "oracle":
        attend_poisoned(context, make_inputs(item.case, context.device))
    elif item.check == "gradients":
        inputs = make_inputs(item.case, context.device)
        answer = attend(context, inputs)
        gradients(inputs, answer, upstream(item.case, answer))
    else:
        run_with(context, item)


def main() -> None:
    """Count."""
    site = Path(sys.argv[1])
    lay_out(site, "triton_counted", "triton_tiled", CHANGES)
    sys.path.insert(0, str(site))
    sys.modules[HERE] = sys.modules["__main__"]
    torch.set_num_threads(1)
    context = context_of("triton_counted")
    for item in plan(context.manifest, "full", context.facts).items:
        visit(context, item)
    json.dump(Counter(found.values()), sys.stdout)


if __name__ == "__main__":
    main()
