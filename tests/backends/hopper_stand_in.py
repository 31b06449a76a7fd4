"""What the Hopper kernel computes from what it is launched with, in plain operations, so that its adapter runs on a CPU.

It reads memory through the descriptors as TMA would, and believes the sizes, the scale and the constants that it is
given; whether the kernel itself is right is for a GPU to say.
"""

from __future__ import annotations

import math
from typing import Any

import torch

LN2 = math.log(2)


class Kernel:
    """Stands where the compiled kernel would; `launches` holds what it was given: (grid, arguments, constants)."""

    def __init__(self) -> None:
        self.launches: list[tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def take(*arguments: Any, **constants: Any) -> None:
            self.launches.append((grid, arguments, constants))
            if arguments[0].base.device.type != "meta":
                attend(*arguments, **constants)

        return take


def attend(
    q, k, v, out, lse, counter, lse_batch, lse_head, scale, batch, heads, gqa_ratio, seq_q, seq_k, sweep, **constants
) -> None:
    """Write `out` and `lse`; base 2, weights rounded to the operands' dtype, sums of what was not rounded."""
    assert (counter is None) == (not constants["DYNAMIC"])
    assert counter is None or counter.tolist() == [0, 0]
    assert constants["EVEN_K"] == (seq_k % constants["KEYS"] == 0)
    assert 1 <= sweep <= batch * heads
    queries = _read(q)[:batch, :heads, :seq_q]
    keys, values = (_read(one)[:batch, :, :seq_k].repeat_interleave(gqa_ratio, 1) for one in (k, v))
    scores = queries.float() @ keys.float().mT
    if constants["CAUSAL"]:
        last = torch.arange(seq_q)[:, None] + seq_k - seq_q
        scores = scores.masked_fill(torch.arange(seq_k) > last, -math.inf)
    top = scores.amax(-1, keepdim=True)
    shift = torch.where(top == -math.inf, 0.0, top * scale)
    weights = torch.exp2(scores * scale - shift)
    total = weights.sum(-1, keepdim=True)
    product = weights.to(q.base.dtype).float() @ values.float()
    _read(out).copy_(torch.where(total > 0, product / total, 0.0))
    natural = torch.where(total > 0, (shift + total.log2()) * LN2, -math.inf)
    torch.as_strided(lse, natural.shape[:3], (lse_batch, lse_head, 1), lse.storage_offset()).copy_(natural[..., 0])


def _read(descriptor: Any) -> torch.Tensor:
    base = descriptor.base
    return torch.as_strided(base, descriptor.shape, descriptor.strides, base.storage_offset())
