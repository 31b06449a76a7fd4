"""The process of a backend: `python -m attn_backends.calibrate.worker`. One cell in, its times out. Started by `crew`.

A message with `once` names a backend to be called once and not timed; `ahead` sends those.
"""

from __future__ import annotations

from collections.abc import Callable

from attn_backends.conformance.channel import Message, serve
from attn_backends.conformance.worker import run_setup


def prepare(job: Message) -> Callable[[Message], Message]:
    """The clock of the job's device; the answer to a cell is what its backend took."""
    run_setup(job["setup"])
    import torch

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
                job["backend"], cell, clock=clock, seed=job["seed"], device=device, check=asked["check"]
            )  # fmt: skip
        if device.type == "cuda" and found["status"] != "device_lost":
            torch.cuda.empty_cache()  # the other backends' processes need the memory
        return {"id": asked["id"], **found}

    return answer


if __name__ == "__main__":
    serve(prepare)
