"""What is left to compile for a backward whose kernels were compiled side by side, for an H200 that is not here.

python -m tests.backends.triton_tiled_together      prints JSON: names compiled in threads, names still to compile
"""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest import mock

import torch
from triton import knobs

from attn_backends.backends.triton_tiled import adapter, together
from attn_backends.backends.triton_tiled.compile_calls import call_of
from attn_backends.backends.triton_tiled.compile_only import _standing_in, target_of


def main() -> None:
    """Compile the smallest backward."""
    side_by_side = together.compile_side_by_side
    compiled: list[str] = []
    left: list[str] = []

    def note(*, fn: Any, **_more: Any) -> None:
        compiled.append(fn.jit_function.__name__)

    def take(*, fn: Any, **_more: Any) -> bool:
        left.append(fn.jit_function.__name__)
        return True

    def both(launches: list[together.Launch]) -> None:
        with knobs.runtime.scope():
            knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook = None, note
            side_by_side(launches)
        side_by_side(launches)

    call = call_of("plain", torch.bfloat16, 64, 64)
    with (
        _standing_in(target_of("sm_90")),
        mock.patch.object(together, "compile_side_by_side", both),
        knobs.runtime.scope(),
    ):
        knobs.runtime.jit_cache_hook = take
        adapter.run(call)
        left.clear()
        with mock.patch.object(together.Launch, "__call__"):
            adapter.backward(call, torch.empty_like(call.out), None)
    json.dump({"compiled": sorted(compiled), "left": left}, sys.stdout)


if __name__ == "__main__":
    main()
