"""The process of a backend: `python -m attn_backends.calibrate.worker`. One cell in, its times out. Started by `crew`.

A message with `once` names a backend to be called once and not timed; `ahead` sends those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attn_backends.conformance.channel import Message, serve
from attn_backends.conformance.worker import run_setup

if TYPE_CHECKING:
    import torch

KEPT_PART = 128  # of the device's memory, as much as a process keeps between its cells


def prepare(job: Message) -> Callable[[Message], Message]:
    """The clock of the job's device; the answer to a cell is what its backend took."""
    run_setup(job["setup"])
    from attn_backends.bench.clock import clock_for
    from attn_backends.bench.target import target
    from attn_backends.calibrate.cells import cell_from_json
    from attn_backends.calibrate.timing import call_once, time_backend
    from attn_backends.host.dispatch import device_of

    device = target(job["device"])
    clock = clock_for(device, device_of(device))

    def answer(asked: Message) -> Message:
        cell = cell_from_json(asked["cell"])
        if "once" in asked:
            found = call_once(asked["once"], cell, seed=job["seed"], device=device)
        else:
            found = time_backend(
                job["backend"], cell, clock=clock, seed=job["seed"], device=device, check=asked["check"],
                best=asked["best"],
            )  # fmt: skip
        if device.type == "cuda" and found["status"] != "device_lost":
            _give_back(device)
        return {"id": asked["id"], **found}

    return answer


def _give_back(device: torch.device) -> None:
    """Memory that the other backends' processes need; not what is little, for it costs time to get it again."""
    import torch

    if torch.cuda.memory_reserved(device) > torch.cuda.get_device_properties(device).total_memory // KEPT_PART:
        torch.cuda.empty_cache()


if __name__ == "__main__":
    serve(prepare)
