"""What numba_tiled is compared with eager on: a table of calls.

    NUMBA_ENABLE_CUDASIM=1 python -m tests.backends.numba_tiled_cases     prints JSON: case -> differences (CPU)
    python -m tests.backends.numba_tiled_cases --compile                  prints JSON: what compiling for GPUs gives

Shapes are small and no multiple of a tile, for the simulator; a GPU runs the same cases.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import pairwise, product
from typing import Any

import torch

from attn_backends.backends.eager import adapter as eager
from attn_backends.call import Call

WIDTH, HEADS, KV_HEADS = 8, 2, 1
ARCHITECTURES = ((7, 5), (8, 0), (9, 0), (12, 0))

# name: (Sq, Sk, further fields of the call); `starts` makes it a packed call, `dtype` and `widths` another tensor.
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "plain": (33, 37, {}),
    "one query": (1, 40, {"causal": True}),
    "causal": (35, 67, {"causal": True}),
    "more queries than keys": (40, 20, {"causal": True}),
    "from the first key": (40, 20, {"causal": True, "causal_alignment": "top_left"}),
    "window": (40, 70, {"causal": True, "window_left": 5}),
    "window on both sides": (34, 66, {"window_left": 5, "window_right": 2}),
    "window that shows nothing": (40, 3, {"window_left": 0, "window_right": 0}),
    "softcap": (9, 33, {"softcap": 2.0, "causal": True}),
    "negative scale": (9, 33, {"softmax_scale": -0.4}),
    "no keys": (5, 0, {}),
    "heads of 40 and 33": (5, 35, {"widths": (40, 33)}),
    "heads of 100": (3, 34, {"widths": (100, 128), "causal": True}),
    "float16": (33, 37, {"dtype": torch.float16, "causal": True}),
    "packed": (36, 40, {"starts": ((0, 1, 1, 35), (0, 7, 9, 40)), "causal": True}),
}


def call_of(name: str, device: str) -> Call:
    """The call of a case, on fresh numbers, its results poisoned."""
    seq_q, seq_k, given = CASES[name]
    given = dict(given)
    torch.manual_seed(0)
    dtype, (width, width_v) = given.pop("dtype", torch.float32), given.pop("widths", (WIDTH, WIDTH))
    starts = given.pop("starts", None)
    batch = () if starts else (2,)
    q, k, v = (
        torch.randn(*batch, tokens, heads, size, device=device).to(dtype)
        for tokens, heads, size in ((seq_q, HEADS, width), (seq_k, KV_HEADS, width), (seq_k, KV_HEADS, width_v))
    )
    lse_shape = (HEADS, seq_q) if starts else (2, HEADS, seq_q)
    if starts:
        q_starts, k_starts = (torch.tensor(one, dtype=torch.int32, device=device) for one in starts)
        longest = (max(b - a for a, b in pairwise(one)) for one in starts)
        given |= {"layout": "thd", "cu_seqlens_q": q_starts, "cu_seqlens_k": k_starts}
        given |= dict(zip(("max_seqlen_q", "max_seqlen_k"), longest, strict=True))
    return Call(
        q=q, k=k, v=v, out=torch.full((*q.shape[:-1], width_v), float("nan"), dtype=dtype, device=device),
        lse=torch.full(lse_shape, float("nan"), device=device), **{"softmax_scale": width**-0.5, **given},
    )  # fmt: skip


def difference(name: str, device: str) -> float:
    """The largest difference from eager in float64, output and LSE; rows that see nothing must be alike."""
    from attn_backends.backends.numba_tiled.adapter import run

    call = call_of(name, device)
    run(call)
    right = call_of(name, device)
    right.q, right.k, right.v = right.q.double(), right.k.double(), right.v.double()
    right.out = right.out.double()
    eager.run(right)
    assert call.lse is not None
    assert right.lse is not None
    if not torch.equal(torch.isneginf(call.lse), torch.isneginf(right.lse)):
        return float("inf")
    seen = ~torch.isneginf(right.lse)
    pairs = ((call.out.double(), right.out), (call.lse[seen], right.lse[seen]))
    found = [float((one - other).abs().max()) for one, other in pairs if one.numel()]
    return max(found, default=0.0)


def compiled(width: int, dtype: str, arch: tuple[int, int]) -> dict[str, Any]:
    """How often local memory is named in the PTX, and whether there is any code at all."""
    from attn_backends.backends.numba_tiled.launch import compiled as ptx_of

    text = ptx_of(width, dtype, dtype, arch)
    return {
        "local": text.count(".local"),
        "products": text.count("fma.rn.f32"),
        "wide": len(re.findall(r"ld\.shared\.v4\.[bf]32", text)),
        "parameters": re.findall(
            r"\.param (?:\.align \d+ )?\.(\w+)", text[text.index(".entry ") : text.index("{", text.index(".entry "))]
        ),
    }


def main() -> None:
    """Print what was asked for."""
    if sys.argv[1:2] == ["--compile"]:
        from attn_backends.backends.numba_tiled.kernel import WIDTHS

        turns = [(width, "float32", (9, 0)) for width in WIDTHS]
        turns += [(width, "float16", ARCHITECTURES[place % len(ARCHITECTURES)]) for place, width in enumerate(WIDTHS)]
        every = list(product(WIDTHS, ("float32", "float16"), ARCHITECTURES))
        found: dict[str, Any] = {
            f"{width} {dtype} sm_{arch[0]}{arch[1]}": compiled(width, dtype, arch)
            for width, dtype, arch in (every if "--all" in sys.argv else turns)
        }
    else:
        found = {name: difference(name, "cpu") for name in CASES}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
