"""`Logical`: the numbers of a case in logical order, float64 on the host, before any storage; and how they are drawn.

Every tensor has a generator of its own, seeded by the case's seed and the tensor's name, so that a case always has the
same values and a check may change one tensor and keep the rest. Letters: B sequences, Sq/Sk longest lengths, Hq/Hkv
heads, D/Dv widths.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from dataclasses import dataclass
from typing import Any

import torch

from attn_backends.conformance.case import Case
from attn_backends.conformance.lengths import Lengths, lengths_of
from attn_backends.conformance.masks import drawn_blocks, drawn_inside, drawn_mask, drawn_sinks, drawn_slopes

SCALES = {"randn": 1.0, "small": 0.02, "large": 32.0, "offset": 1.0}
OFFSET = 3.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Logical:
    """Everything that a call of `case` holds, not yet stored.

    q [B, Sq, Hq, D], k [B, Sk, Hkv, D], v [B, Sk, Hkv, Dv]
    mask: as it is passed, 2 to 4 dims; sinks [Hq]; slopes [Hq] or [B, Hq]
    blocks: bool [B | 1, Hq | 1, rows, columns]; inside: bool [Sq, Sk], what those show token by token
    junk: what cells hold that no sequence owns, NaN or, at odd seeds, inf; pages: seed of the order of pages
    """

    case: Case
    lengths: Lengths
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None = None
    blocks: torch.Tensor | None = None
    inside: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    slopes: torch.Tensor | None = None
    junk: float = math.nan
    pages: int = 0

    def replace(self, **changes: Any) -> Logical:
        """A copy with some numbers changed."""
        return dataclasses.replace(self, **changes)


def draw(case: Case) -> Logical:
    """The numbers of a case, always the same ones."""
    return Logical(
        case=case,
        lengths=lengths_of(case),
        q=values(case, "q", (case.batch, case.seq_q, case.q_heads, case.head_dim)),
        k=values(case, "k", (case.batch, case.seq_k, case.kv_heads, case.head_dim)),
        v=values(case, "v", (case.batch, case.seq_k, case.kv_heads, case.head_dim_v)),
        mask=drawn_mask(case, generator(case, "mask")),
        blocks=drawn_blocks(case, generator(case, "blocks")),
        inside=drawn_inside(case, generator(case, "inside")),
        sinks=drawn_sinks(case, generator(case, "sinks")),
        slopes=drawn_slopes(case),
        junk=math.inf if case.seed % 2 else math.nan,
    )


def generator(case: Case, name: str) -> torch.Generator:
    """The generator of one tensor of a case."""
    return torch.Generator().manual_seed(zlib.crc32(f"{case.seed}/{name}".encode()))


def values(case: Case, name: str, sizes: tuple[int, ...]) -> torch.Tensor:
    """Normal numbers at the case's scale, float64."""
    drawn = torch.randn(sizes, generator=generator(case, name), dtype=torch.float64) * SCALES[case.values]
    return drawn + OFFSET if case.values == "offset" else drawn
