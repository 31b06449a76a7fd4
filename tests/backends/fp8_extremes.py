"""What `fp8` does with scales and numbers at the ends of their ranges, by both kernels. A table of checks.

    TRITON_INTERPRET=1 python -m tests.backends.fp8_extremes      prints JSON: check -> what is wrong

A check says what is off, by how much of what is allowed, by name; nothing where all is well.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from itertools import product

import torch

from attn_backends.backends.fp8.attend import attend
from attn_backends.backends.fp8.block import BLOCK
from attn_backends.backends.fp8.operands import FORMAT, Operands
from attn_backends.backends.fp8.portable.launch import launch_forward
from attn_backends.backends.fp8.quantize.launch import dense, quantized, transposed

KERNELS = {"portable": launch_forward, "as chosen": attend}


def of_a_nan_scale(device: str) -> dict[str, float]:
    """A scale of NaN, of the second block: NaN for the rows that see it, nothing for those in other tiles that do not."""
    q, k, v = (torch.randn(1, 1, 200, 64, generator=torch.Generator().manual_seed(3)).half().to(device) for _ in "qkv")
    operands = quantized(q, k, v)
    found = {}
    for (kernel, run), name in product(KERNELS.items(), ("q_scale", "k_scale", "v_scale")):
        scale = getattr(operands, name).clone()
        scale[0, 0, 1] = math.nan
        out, lse = torch.zeros_like(q), torch.zeros(1, 1, 200, device=device)
        run(dataclasses.replace(operands, **{name: scale}), out, lse, 0.125, (-1, 0))
        rows = out[0, 0].isnan().all(dim=1)
        right = bool(rows[BLOCK:].all()) and not bool(out[0, 0, :BLOCK].isnan().any())
        right = right and bool(lse[0, 0, BLOCK:].isnan().all()) == (name != "v_scale")
        found |= {} if right else {f"{name}, {kernel}": 1.0}
    return found


def of_numbers_that_are_not_finite(device: str) -> dict[str, float]:
    """A NaN or an infinite number in q is its row's, in k its key's, in v its column's; whatever does not see it is finite."""
    found = {}
    for (kernel, run), name, value in product(KERNELS.items(), "qkv", (math.nan, math.inf, -math.inf)):
        drawn = torch.Generator().manual_seed(3)
        tensors = {one: torch.randn(1, 1, 200, 64, generator=drawn).half().to(device) for one in "qkv"}
        tensors[name][0, 0, 7, 4] = value
        out, lse = torch.zeros_like(tensors["q"]), torch.zeros(1, 1, 200, device=device)
        run(quantized(**tensors, softmax_scale=0.125), out, lse, 0.125, (-1, 0))
        spoilt = ~out[0, 0].isfinite()
        want = torch.zeros_like(spoilt)
        if name == "q":
            want[7] = True
        elif name == "k":
            want[7:] = True
        else:
            want[:, 4] = spoilt[:, 4]  # of a key that a row does not see, in its tile: 0 times NaN
            want[7:, 4] = True
        right = torch.equal(spoilt, want) and torch.equal(~lse[0, 0].isfinite(), want.all(dim=1))
        found |= {} if right else {f"{value} in {name}, {kernel}": 1.0}
    return found


def of_the_largest_numbers(device: str) -> dict[str, float]:
    """Numbers at the end of bfloat16's range in q, k and v: finite results. Interpreted in float32, on a GPU as they come."""
    found = {}
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    for (kernel, run), value in product(KERNELS.items(), (3e38, -3e38)):
        q, k, v = (
            torch.randn(1, 1, 200, 64, generator=torch.Generator().manual_seed(3)).to(device, kind) for _ in "qkv"
        )
        q[0, 0, 5], k[0, 0, 7], v[0, 0, 9] = value, value, value
        out, lse = torch.zeros_like(q), torch.zeros(1, 1, 200, device=device)
        run(quantized(q, k, v), out, lse, 0.125, (-1, 0))
        if not (out.isfinite().all() and lse.isfinite().all()):
            found[f"{value}, {kernel}"] = 1.0
    return found


ODD_DESCALES: dict[str, tuple[list[float], list[float], list[float]]] = {  # of q, k and v, of three blocks
    "q negative": ([-0.01], [0.01], [0.01]),
    "k turns its sign": ([0.01], [0.01, -0.02, 0.01], [0.01]),
    "both negative": ([-0.01], [-0.01], [0.01]),
    "q zero": ([0.0], [0.01], [0.01]),
    "a block of k zero": ([0.01], [0.01, 0.0, 0.02], [0.01]),
    "v zero": ([0.01], [0.01], [0.0]),
    "a block of v zero": ([0.01], [0.01], [0.01, 0.0, 0.02]),
    "the first block of v zero": ([0.01], [0.01], [0.0, 0.03, 0.02]),
    "v turns its sign": ([0.01], [0.01], [0.01, -0.5, 0.02]),
    "huge": ([1e20], [1e20], [0.01]),
}


def of_odd_descales(device: str) -> dict[str, float]:
    """Descales that are 0, negative or huge multiply as they are: full and causal, where `attend` serves them."""
    found = {}
    drawn = torch.Generator().manual_seed(7)
    for width in (64,) if device == "cpu" else (64, 128, 256):
        q8, k8, v8 = ((30 * torch.randn(1, 1, 300, width, generator=drawn)).to(FORMAT).to(device) for _ in "qkv")
        for (name, descales), causal in product(ODD_DESCALES.items(), (False, True)):
            q_scale, k_scale, v_scale = (torch.tensor(one, device=device).expand(1, 1, 3) for one in descales)
            operands = Operands(
                q8=q8, k8=k8, vt8=transposed(v8, dense(q8, k8)), q_scale=q_scale, k_scale=k_scale, v_scale=v_scale,
                longest_q=300, longest_k=300,
            )  # fmt: skip
            out = torch.zeros(q8.shape, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
            lse = torch.zeros(q8.shape[:3], device=device)
            attend(operands, out, lse, width**-0.5, (-1, 0 if causal else -1))
            if name == "huge":
                error = 0.0 if out.isfinite().all() and lse.isfinite().all() else math.inf
            else:
                q, k, v = (
                    x.double() * scale.double().repeat_interleave(BLOCK, 2)[:, :, :300, None]
                    for x, scale in ((q8.float(), q_scale), (k8.float(), k_scale), (v8.float(), v_scale))
                )
                scores = q @ k.transpose(-1, -2) * width**-0.5
                if causal:
                    scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
                want = scores.softmax(-1) @ v
                error = float((out.double() - want).norm() / want.norm().clamp(min=1e-3)) / 0.06
                error = max(error, float((lse.double() - scores.logsumexp(-1)).abs().max()) / 0.05)
            if not error < 1.0:
                found[f"{name}, {width} wide, {'causal' if causal else 'full'}"] = error
    return found


def of_scales_of_any_size(device: str) -> dict[str, float]:
    """Queries that are keys: whatever the softmax scale, from where one key outweighs all others each row is its own key's value."""
    found = {}
    for (kernel, run), scale in product(KERNELS.items(), (10.0, 2.4e6, 4e6, 1e9, 1e18, 1e24, 1e30)):
        k, v = (
            torch.randn(1, 1, 200, 64, generator=torch.Generator().manual_seed(one)).half().to(device) for one in (3, 4)
        )
        out, lse = torch.zeros_like(v), torch.zeros(1, 1, 200, device=device)
        run(quantized(k, k, v, softmax_scale=scale), out, lse, scale, (-1, -1))
        want = k.float().square().sum(-1) * scale
        error = float((out - v).float().norm() / v.float().norm()) / 0.06
        error = max(error, float(((lse - want) / want).abs().max()) / 0.1)
        if not error < 1.0:
            found[f"{scale}, {kernel}"] = error
    return found


ZEROS = {  # descales of q and of k, softmax scales: their product is 0, however large two of the three are
    "q": (0.0, 1.0, 3e38), "k": (1.0, 0.0, 3e38), "q, turned": (0.0, 1.0, -3e38), "k of a large q": (1e10, 0.0, 2e38),
    "k of the largest q": (-3e38, 0.0, 3e38), "q, beyond float32": (0.0, 1.0, 1e300), "both": (0.0, 0.0, 3e38),
}  # fmt: skip


def of_zeros_beside_large_numbers(device: str) -> dict[str, float]:
    """A descale of 0 makes all keys weigh the same, whatever stands beside it: the mean of v, and the count of keys."""
    found = {}
    q8, k8, v8 = (
        (30 * torch.randn(1, 1, 200, 64, generator=torch.Generator().manual_seed(one))).to(FORMAT).to(device)
        for one in (3, 4, 5)
    )
    for name, (q_scale, k_scale, scale) in ZEROS.items():
        sizes = (torch.full((1, 1, 2), size, device=device) for size in (q_scale, k_scale, 0.01))
        operands = Operands(
            q8=q8, k8=k8, vt8=transposed(v8, dense(q8, k8)), **dict(zip(("q_scale", "k_scale", "v_scale"), sizes, strict=True)),
            longest_q=200, longest_k=200,
        )  # fmt: skip
        out = torch.full(q8.shape, math.nan, device=device, dtype=torch.float32)  # which the pipeline does not write
        lse = torch.full(q8.shape[:3], math.nan, device=device)
        attend(operands, out, lse, scale, (-1, -1))
        want = v8.float().mean(2, keepdim=True) * 0.01
        error = max(float((out - want).abs().max()) / 0.01, float((lse - math.log(200)).abs().max()) / 0.01)
        if not error < 1.0:
            found[name] = error
    return found


CHECKS = {
    "zeros beside large numbers": of_zeros_beside_large_numbers,
    "odd descales": of_odd_descales,
    "a NaN scale": of_a_nan_scale,
    "the largest numbers": of_the_largest_numbers,
    "scales of any size": of_scales_of_any_size,
}
ON_A_GPU = {"numbers that are not finite": of_numbers_that_are_not_finite}  # interpreted, the code of NaN is 480
NAMES = tuple(CHECKS)


def main() -> None:
    """Print every check's faults, from this machine's CPU."""
    json.dump({name: check("cpu") for name, check in CHECKS.items()}, sys.stdout)


if __name__ == "__main__":
    main()
