"""Plans that fit a chip: what a tuner may try. Everything else is pruned before it is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from attn_backends.pipeline.budget import Budget
from attn_backends.pipeline.chip import Chip
from attn_backends.pipeline.plan import Plan
from attn_backends.pipeline.timeline import timeline

Q_TILES, S_STAGES, KEYS, STAGES = (1, 2, 3), (1, 2), (64, 128), (1, 2, 3, 4)


def plans(head_dim: int, *, causal: bool = False, element_bytes: int = 2) -> Iterator[Plan]:
    """Every pipeline that can be said."""
    for q_tiles, s_stages, keys, stages, flags in product(
        Q_TILES, S_STAGES, KEYS, STAGES, product((False, True), repeat=2)
    ):
        yield Plan(
            head_dim=head_dim, q_tiles=q_tiles, s_stages=s_stages, keys=keys, stages=stages, causal=causal,
            q_registers=flags[0], shared_out=flags[1], bytes=element_bytes,
        )  # fmt: skip


def fitting(head_dim: int, chip: Chip, *, causal: bool = False, element_bytes: int = 2) -> list[Plan]:
    """Those that fit, the fastest by the model first; of equals, the one that takes least."""
    found = [
        plan
        for plan in plans(head_dim, causal=causal, element_bytes=element_bytes)
        if Budget(plan=plan, chip=chip).fits
    ]
    return sorted(found, key=lambda plan: (-timeline(plan, chip).rate, Budget(plan=plan, chip=chip).shared))
