"""Backends that behave and misbehave while they are timed, registered in the test's process and in every worker."""

from __future__ import annotations

import os
import signal
import time

import torch

from attn_backends import Call, register, unregister
from attn_backends.bench.machinery import EVERYTHING

SETUP = "tests.calibrate.fakes:register_all"


def right(call: Call) -> None:
    """torch's own attention."""
    group = call.q.shape[2] // call.k.shape[2]
    q, k, v = call.q, call.k.repeat_interleave(group, 2), call.v.repeat_interleave(group, 2)
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=call.causal, scale=call.softmax_scale)
    call.out.copy_(out.transpose(1, 2))


def slow(call: Call) -> None:
    """Right, after a nap."""
    time.sleep(0.02)
    right(call)


def dies(call: Call) -> None:
    """A kernel that takes its process with it."""
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(call: Call) -> None:
    """A kernel that never ends."""
    time.sleep(600)


def hungry(call: Call) -> None:
    """More memory than there is, for whatever is long."""
    if call.q.shape[1] > 64:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")
    right(call)


def wrong(call: Call) -> None:
    """Fast, and not attention."""
    call.out.zero_()


FAKES = {"quick": right, "slow": slow, "dies": dies, "hangs": hangs, "hungry": hungry, "wrong": wrong}


def register_all() -> None:
    """All of them, in this process."""
    for place, (name, run) in enumerate(FAKES.items()):
        register({"name": name, "priority": 900 + place, "capability": [EVERYTHING]}, run)


def unregister_all() -> None:
    """None of them."""
    for name in FAKES:
        unregister(name)
