"""What the merging kernel is compared with `merge_states` on.

TRITON_INTERPRET=1 python -m tests.host.fused_merge_cases      prints JSON: case -> largest difference
"""

from __future__ import annotations

import json
import sys

import torch

from attn_backends.host import fused_merge
from attn_backends.merge import merge_states

CASES = {  # batch, tokens, heads, width, dtype
    "one token": (3, 1, 4, 128, "float32"),
    "new tokens, odd width": (2, 5, 3, 40, "float32"),
    "float16": (2, 2, 4, 64, "float16"),
    "a wide head": (1, 2, 2, 512, "float16"),
    "nothing": (0, 2, 2, 16, "float32"),
}


def difference(name: str, device: str, dtype: str | None = None) -> dict[str, float]:
    """Of out and lse; rows that one state or both did not see hold NaN there, and must agree exactly."""
    batch, tokens, heads, width, kind = CASES[name]
    generator = torch.Generator().manual_seed(2)
    states = []
    for hidden in (0, 1):
        out = torch.randn(batch, heads, tokens, width, generator=generator).to(getattr(torch, dtype or kind))
        lse = torch.randn(batch, heads, tokens, generator=generator) * 30
        for which in (hidden, 2):
            if batch * heads * tokens > which:
                lse.view(-1)[which] = -torch.inf
                out.view(-1, width)[which] = torch.nan
        states += [out.transpose(1, 2).to(device), lse.transpose(1, 2).contiguous().transpose(1, 2).to(device)]
    (out, lse), (right, right_lse) = fused_merge.merge(*states), merge_states(*states)
    if not right.numel():
        return {"out": float(out.shape != right.shape), "lse": float(lse.shape != right_lse.shape), "infinite": 0.0}
    seen = torch.isfinite(right_lse)
    return {
        "out": float((out.double() - right.double()).abs().max()),
        "lse": float((lse - right_lse)[seen].abs().max()),
        "infinite": float((torch.isfinite(lse) != seen).sum()),
    }


if __name__ == "__main__":
    json.dump({name: difference(name, "cpu") for name in CASES}, sys.stdout)
