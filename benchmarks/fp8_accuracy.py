"""What fp8 costs in accuracy, run on the GPU: options side by side, and drift over long contexts. Needs a Hopper GPU.

    python benchmarks/fp8_accuracy.py [--out FILE]

Numbers are drawn from N(0, 1), and from the same with N(0, 100) added to one in a thousand (FlashAttention-3, arXiv:2407.08608,
section 4.3), in bfloat16. Errors are against float64 on the tensors as given, root mean square over sampled query rows, also
relative to the root mean square of the right output; medians of several draws. Drift is against float64 on what the codes
stand for, with values around 0 and around 1: the second shows sums that lose their small end.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch

from attn_backends import AttnBackendsError, Policy, attention
from attn_backends.backends.fp8.block import BLOCK
from attn_backends.backends.fp8.hopper.configs import configs
from attn_backends.backends.fp8.hopper.launch import launch_forward
from attn_backends.backends.fp8.operands import FORMAT, Operands, key_order
from attn_backends.backends.fp8.quantize.launch import dense, quantized, transposed
from attn_backends.bench.versions import clocks, device_name, versions
from attn_backends.registry.registry import default_registry

LARGEST = 448.0
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
DRAWS, HEADS, TOKENS, SAMPLES = 5, 4, 8192, 512
ONE_LEVEL: dict[str, Any] = {"two_level": False, "parts": 0, "q_tiles": 2, "registers": 240, "max_registers": 168}
LONG = (8192, 16384, 32768, 65536, 131072)


def drawn(shape: tuple[int, ...], outliers: bool) -> torch.Tensor:
    """bfloat16 on the GPU."""
    x = torch.randn(shape, device="cuda")
    if outliers:
        x = x + 10 * torch.randn_like(x) * (torch.rand_like(x) < 0.001)
    return x.bfloat16()


def right(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention in float64, [H, S, D]; few queries."""
    weights = (q.double() @ k.double().transpose(1, 2) * scale).softmax(-1)
    return weights @ v.double()


def per_tensor(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, scale)."""
    scale = x.float().abs().amax() / LARGEST
    return (x.float() / scale).to(FORMAT), scale


def of_one_scale(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Operands:
    """Operands with one scale per tensor; [B, H, S, D] each."""
    (q8, q_scale), (k8, k_scale), (v8, v_scale) = (per_tensor(x) for x in (q, k, v))
    blocks = q.shape[2] // BLOCK

    def spread(scale: torch.Tensor) -> torch.Tensor:
        return scale.expand(q.shape[0], q.shape[1], blocks)

    return Operands(
        q8=q8, k8=k8, vt8=transposed(v8, dense(q8, k8)), q_scale=spread(q_scale), k_scale=spread(k_scale),
        v_scale=spread(v_scale), longest_q=q.shape[2], longest_k=q.shape[2],
    )  # fmt: skip


def attended(operands: Operands, *, one_level: bool = False) -> torch.Tensor:
    """Full attention by the shipped pipeline, or by one that adds up in the unit; [B, H, S, D]."""
    q8 = operands.q8
    out = torch.empty(q8.shape, dtype=torch.bfloat16, device=q8.device)
    lse = torch.empty(q8.shape[:3], device=q8.device)
    config = next(row for row in configs() if row.head_dim == q8.shape[3] and not row.causal)
    if one_level:
        config = dataclasses.replace(config, **ONE_LEVEL)
    launch_forward(operands, out, lse, q8.shape[3] ** -0.5, False, config)
    return out


def of_fa3(codes: tuple[torch.Tensor, ...], scales: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Full attention by FlashAttention-3, [B, S, H, D]."""
    named = dict(zip(("q_descale", "k_descale", "v_descale"), scales, strict=True))
    return attention(*codes, **named, backend="fa3_fp8", policy=Policy(numerics={"exact", "quantized"}))


def answers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """What each option makes of q, k, v [1, H, S, D]."""
    first = tuple(x.transpose(1, 2).contiguous() for x in (q, k, v))
    try:
        yield (
            "FlashAttention-3, one scale per tensor",
            of_fa3(*zip(*map(per_tensor, first), strict=True)).transpose(1, 2),
        )
    except AttnBackendsError as missing:
        print(str(missing).splitlines()[0], file=sys.stderr)
    yield "one scale per tensor", attended(of_one_scale(q, k, v))
    yield "blocks", attended(quantized(q, k, v, softmax_scale=q.shape[3] ** -0.5, rotate=False))
    yield "blocks, rotated", attended(quantized(q, k, v, softmax_scale=q.shape[3] ** -0.5))
    yield "16 bits", attention(*first, backend="hopper").transpose(1, 2)


def accuracy() -> list[dict[str, Any]]:
    """One row per width, data and option."""
    rows = []
    for head_dim, outliers in product((64, 128, 256), (False, True)):
        errors: dict[str, list[tuple[float, float]]] = {}
        for draw in range(DRAWS):
            torch.manual_seed(draw)
            q, k, v = (drawn((1, HEADS, TOKENS, head_dim), outliers) for _ in range(3))
            step = TOKENS // SAMPLES
            want = right(q[0, :, ::step], k[0], v[0], head_dim**-0.5)
            for name, out in answers(q, k, v):
                rms = float((out[0, :, ::step].double() - want).square().mean().sqrt())
                errors.setdefault(name, []).append((rms, rms / float(want.square().mean().sqrt())))
        for name, found in errors.items():
            row = {
                "head_dim": head_dim, "data": "outliers" if outliers else "normal", "option": name,
                "rmse": statistics.median(one[0] for one in found), "relative": statistics.median(one[1] for one in found),
                "draws": [one[1] for one in found],
            }  # fmt: skip
            rows.append(row)
            print(f"D{head_dim} {row['data']:8} {row['relative']:.4f} {row['rmse']:.5f} {name}")
    return rows


def meant(operands: Operands) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v that the codes of head 0 stand for, float64 [1, S, D]."""
    order = key_order(operands.vt8.shape[3]).to(operands.vt8.device)
    v8 = torch.empty_like(operands.vt8.view(torch.int8))
    v8[..., order] = operands.vt8.view(torch.int8)
    pairs = (
        (operands.q8, operands.q_scale), (operands.k8, operands.k_scale),
        (v8.transpose(2, 3).contiguous().view(FORMAT), operands.v_scale),
    )  # fmt: skip
    q, k, v = (x[0, :1].double() * s[0, :1].double().repeat_interleave(BLOCK, 1)[..., None] for x, s in pairs)
    return q, k, v


def ways(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, Tensors]]:
    """(name, answer, what its codes stand for) of each way to add; q, k, v [1, 1, S, D]."""
    operands = quantized(q, k, v, softmax_scale=q.shape[3] ** -0.5)
    yield "in the unit", attended(operands, one_level=True), meant(operands)
    yield "two levels", attended(operands), meant(operands)
    codes, scales = zip(*(per_tensor(x.transpose(1, 2).contiguous()) for x in (q, k, v)), strict=True)
    try:
        out = of_fa3(codes, scales)
    except AttnBackendsError as missing:
        print(str(missing).splitlines()[0], file=sys.stderr)
    else:
        q8, k8, v8 = (x[0].transpose(0, 1).double() * scale.double() for x, scale in zip(codes, scales, strict=True))
        yield "FlashAttention-3", out.transpose(1, 2), (q8, k8, v8)


def drift() -> list[dict[str, Any]]:
    """One row per width, length, mean of V and way to add; `bias`: how much of the right output is added or missing."""
    rows = []
    for head_dim, mean, tokens in product((64, 128, 256), (0.0, 1.0), LONG):
        torch.manual_seed(tokens)
        q, k, v = (torch.randn(1, 1, tokens, head_dim, device="cuda").bfloat16() for _ in range(3))
        step = tokens // 64
        said = []
        for way, answer, (wide_q, wide_k, wide_v) in ways(q, k, v + mean):
            want = right(wide_q[:, ::step], wide_k, wide_v, head_dim**-0.5)
            off = answer[0, :, ::step].double() - want
            row = {
                "head_dim": head_dim, "tokens": tokens, "mean": mean, "way": way, "relative": float(off.norm() / want.norm()),
                "bias": float((off * want).sum() / want.square().sum()),
            }  # fmt: skip
            rows.append(row)
            said.append(f"{way} {row['relative']:.4f} ({row['bias']:+.4f})")
        print(f"D{head_dim} V around {mean:.0f}, {tokens:6} tokens:", ", ".join(said))
    return rows


def main() -> int:
    """Run both, print, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200/fp8-accuracy.json"))
    given = parser.parse_args()
    device = torch.device("cuda", torch.cuda.current_device())
    record = {
        "schema": "attn.fp8_accuracy/1", "command": "python " + " ".join(sys.argv), "device": device_name(device),
        "versions": versions(default_registry().snapshot()), "clocks": clocks(device),
        "draws": DRAWS, "heads": HEADS, "tokens": TOKENS, "sampled_rows": SAMPLES, "accuracy": accuracy(), "drift": drift(),
    }  # fmt: skip
    given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
