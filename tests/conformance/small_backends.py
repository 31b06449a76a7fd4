"""Backends with a tiny box, one right and some wrong, registered in-process: what the doors of the suite are tested with.

Also a pytest plugin (`-p tests.conformance.small_backends`), so that the workers of xdist have them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attn_backends.registry.registry import default_registry

BOX = {
    "device": ["cpu"], "dtype": ["float32"], "kv_format": ["dense"], "layout": ["bshd"], "phase": ["prefill"],
    "attn_type": ["decoder"], "head_dim": [40], "head_dim_v": [40], "gqa_ratio": [2], "seq_len": {"min": 1, "max": 129},
    "causal": [False, True], "causal_alignment": ["bottom_right"], "scale": ["default"], "lse": [False, True],
    "strides": ["contiguous"], "index_width": [32],
}  # fmt: skip


def right(call: Any) -> None:
    """Attention with a bottom-right causal mask, in float64."""
    _attend(call, call.k.shape[1] - call.q.shape[1])


def misaligned(call: Any) -> None:
    """The diagonal hangs on the first key: right at Sq = Sk alone."""
    _attend(call, 0)


def raising(call: Any) -> None:
    """Declared and not served."""
    raise RuntimeError("no kernel image <b>is</b> available")


def leaving(call: Any) -> None:
    """Takes the process with it."""
    os.abort()


def _attend(call: Any, offset: int) -> None:
    import torch

    q, k, v = (tensor.double().transpose(1, 2) for tensor in (call.q, call.k, call.v))
    k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
    scores = call.softmax_scale * q @ k.mT
    if call.causal:
        place = torch.arange(q.shape[2])[:, None] + offset
        scores = scores.masked_fill(torch.arange(k.shape[2]) > place, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp()
    seen = v.masked_fill(~(scores > -torch.inf).any(2)[..., None], 0.0)
    call.out.copy_((weights @ seen).transpose(1, 2))
    if call.lse is not None:
        call.lse.copy_(lse)


SMALL: dict[str, Callable[[Any], None]] = {
    "small_right": right, "small_misaligned": misaligned, "small_raising": raising, "small_leaving": leaving,
}  # fmt: skip


@contextmanager
def registered(*names: str) -> Iterator[None]:
    """Have these backends for a while."""
    for name in names:
        default_registry().register({"name": name, "version": "0.1.0", "capability": [BOX]}, SMALL[name])
    try:
        yield
    finally:
        for name in names:
            default_registry().unregister(name)


def pytest_configure(config: Any) -> None:
    """As a plugin: they stay for the life of the process."""
    for name in set(SMALL) - set(default_registry().snapshot().names()):
        default_registry().register({"name": name, "version": "0.1.0", "capability": [BOX]}, SMALL[name])
