"""The quantise pass of `fp8` on this GPU: right against torch, then GB/s of every way to cut it.

python benchmarks/fp8_quantize_probe.py [check|time]
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable

import torch

from attn_backends.backends.fp8.operands import BLOCK, key_order
from attn_backends.backends.fp8.quantize.launch import architecture, dense, quantized, transposed
from attn_backends.backends.fp8.quantize.tiles import Tiles, tiles_for

SHAPES = {64: 32, 128: 16, 256: 8}  # head width -> heads
TOKENS = 16384
VARIANTS = {  # warps, stages, ahead, registers, part
    64: [(4, 2, False, 128, 64), (4, 1, False, 128, 64), (4, 3, False, 128, 64), (4, 2, True, 0, 64), (8, 2, False, 0, 64), (8, 1, False, 0, 64), (8, 2, True, 0, 64)],
    128: [(8, 2, False, 128, 128), (8, 1, False, 128, 128), (8, 2, False, 128, 64), (8, 1, False, 128, 64), (8, 2, True, 0, 64), (4, 2, False, 0, 64), (4, 1, False, 0, 128), (8, 3, False, 128, 64)],
    256: [(8, 2, False, 0, 128), (8, 1, False, 0, 128), (8, 1, False, 0, 64), (8, 2, False, 0, 64), (16, 2, False, 0, 64), (16, 1, False, 0, 128)],
}  # fmt: skip


def drawn(heads: int, tokens: int, width: int, layout: str, dtype: torch.dtype) -> torch.Tensor:
    """[1, heads, tokens, width], a view of the layout."""
    shape = (1, tokens, heads, width) if layout == "bshd" else (1, heads, tokens, width)
    x = torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)
    return x.transpose(1, 2) if layout == "bshd" else x


def expected(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes as numbers and scales by torch, without a rotation, to the bit."""
    tokens = x.shape[2]
    whole = torch.nn.functional.pad(x.float(), (0, 0, 0, -tokens % BLOCK)).unflatten(2, (-1, BLOCK))
    scale = whole.abs().amax(dim=(3, 4)) / torch.tensor(448.0, device=x.device)
    scale = torch.where(scale == 0, 1.0, scale.clamp(2.0**-60))
    codes = (whole * (1.0 / scale)[..., None, None]).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    return codes.flatten(2, 3)[:, :, :tokens], scale


def check() -> None:
    for (width, heads), layout, tokens, dtype in itertools.product(
        SHAPES.items(), ("bshd", "bhsd"), (1, 127, 1024, 1100), (torch.bfloat16, torch.float16, torch.float32)
    ):
        q, k, v = (drawn(heads, tokens, width, layout, dtype) for _ in range(3))
        plain, turned = quantized(q, k, v, rotate=False), quantized(q, k, v)
        differing = 0
        for x, codes, scale in ((q, plain.q8, plain.q_scale), (k, plain.k8, plain.k_scale)):
            want, want_scale = expected(x)
            differing += int((codes.float() != want).sum()) + int((scale != want_scale).sum())
        want, want_scale = expected(v)
        padded = torch.zeros(plain.vt8.shape, device="cuda")
        padded[..., :tokens] = want.transpose(-1, -2)
        right = padded[..., key_order(padded.shape[-1]).cuda()]
        for one in (plain, turned):
            differing += int((one.vt8.float() != right).sum()) + int((one.v_scale != want_scale).sum())
        again = transposed(want.to(torch.float8_e4m3fn), dense(q, k))
        differing += int((again.float() != right).sum())
        q_back, k_back = (
            codes.float() * scale.repeat_interleave(BLOCK, 2)[:, :, :tokens, None]
            for codes, scale in ((turned.q8, turned.q_scale), (turned.k8, turned.k_scale))
        )
        exact = q.double() @ k.double().transpose(-1, -2)
        error = float((q_back.double() @ k_back.double().transpose(-1, -2) - exact).norm() / exact.norm())
        verdict = "right" if not differing and error < 0.06 else "WRONG"
        print(
            f"{verdict} D {width} {layout} S {tokens} {dtype}: {differing} differ, scores off by {error:.4f}",
            flush=True,
        )


def milliseconds(call: Callable[[], object], rounds: int = 15) -> float:
    call()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(200_000)  # noqa: SLF001  # the host is ahead
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def time() -> None:
    a = torch.empty(2**28, dtype=torch.int8, device="cuda")
    b = torch.empty_like(a)
    copied = 2 * a.numel() / milliseconds(lambda: b.copy_(a)) / 1e6
    print(f"copy: {copied:.0f} GB/s", flush=True)
    for width, heads in SHAPES.items():
        q, k, v = (drawn(heads, TOKENS, width, "bshd", torch.bfloat16) for _ in range(3))
        size = 3 * 3 * q.numel()
        results = []
        for (warps, stages, ahead, cap, part), blocks in itertools.product(VARIANTS[width], (1, 2, 4, 8, 16)):
            tiles = Tiles(
                head_dim=width, blocks=blocks, warps=warps, stages=stages, ahead=ahead, registers=cap, part=part
            )
            try:
                rate = size / milliseconds(functools.partial(quantized, q, k, v, tiles=tiles)) / 1e6
            except Exception as error:  # noqa: BLE001  # a tile that does not fit is a line as well
                print(f"{tiles}: {type(error).__name__}", flush=True)
                continue
            results.append((rate, tiles))
            print(f"{rate:6.0f} GB/s {rate / copied:.2f} of copy  {tiles}", flush=True)
        print(f"best of D {width}: {max(results, key=lambda pair: pair[0])}", flush=True)
        for layout, rotate in (("bshd", False), ("bhsd", True)):
            q, k, v = (drawn(heads, TOKENS, width, layout, torch.bfloat16) for _ in range(3))
            rate = size / milliseconds(functools.partial(quantized, q, k, v, rotate=rotate)) / 1e6
            print(
                f"{rate:6.0f} GB/s {layout}, rotate {rotate}, shipped {tiles_for(architecture(q.device), width)}",
                flush=True,
            )
        v8 = v.to(torch.float8_e4m3fn)
        rate = 2 * v8.numel() / milliseconds(functools.partial(transposed, v8, dense(q, k))) / 1e6
        print(f"{rate:6.0f} GB/s transposed alone, D {width}", flush=True)


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["check", "time"]
    if "check" in chosen:
        check()
    if "time" in chosen:
        time()
