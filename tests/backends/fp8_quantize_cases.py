"""What the quantise pass of `fp8` is held against: torch, number by number. A table of calls.

    TRITON_INTERPRET=1 python -m tests.backends.fp8_quantize_cases      prints JSON: case -> what is wrong

bfloat16 is for a GPU alone: Triton's interpreter is silently wrong there.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from attn_backends.backends.fp8.block import BLOCK
from attn_backends.backends.fp8.operands import key_order
from attn_backends.backends.fp8.quantize import rotation
from attn_backends.backends.fp8.quantize.codes import LARGEST_SCORE_SCALE, LEAST_SCORE_SCALE, quantize_tile
from attn_backends.backends.fp8.quantize.launch import Sequences, dense, quantized, transposed
from attn_backends.backends.fp8.quantize.tiles import Tiles

SCORE_SCALES, VALUE_SCALES = (2.0**-60, 2.0**50), (2.0**-24, 2.0**66)
HEADS, KV_HEADS = 2, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """lengths: (Sq, Sk) of each sequence, packed where `packed`; fill: what is put where (see `_fill`)."""

    lengths: tuple[tuple[int, int], ...] = ((150, 200),)
    packed: bool = False
    width: int = 64
    width_v: int = 64
    layout: str = "bshd"
    dtype: str = "float16"
    rotate: bool = False
    left: int = -1
    fill: str = "normal"
    strided: bool = False
    tiles: tuple[int, bool] = (2, False)  # blocks, ahead
    part: int = 128
    softmax_scale: float | None = None


CASES: dict[str, Case] = {
    "plain": Case(),
    "whole blocks": Case(lengths=((128, 256),)),
    "one token": Case(lengths=((1, 1),)),
    "two sequences, heads first": Case(lengths=((130, 129),) * 2, layout="bhsd"),
    "strided": Case(strided=True),
    "128 wide": Case(width=128, width_v=128),
    "256 wide": Case(width=256, width_v=256),
    "blocks ahead": Case(lengths=((10, 520),), tiles=(3, True)),
    "float32": Case(dtype="float32"),
    "rotated, 64": Case(rotate=True),
    "rotated, 128": Case(rotate=True, width=128),
    "rotated, 256": Case(rotate=True, width=256, lengths=((128, 130),)),
    "rotated, 128 in two parts": Case(rotate=True, width=128, part=64),
    "rotated, 256 in four parts": Case(rotate=True, width=256, lengths=((128, 130),), part=64),
    "rotated, float32": Case(rotate=True, dtype="float32"),
    "packed": Case(lengths=((5, 7), (0, 130), (131, 0), (64, 300)), packed=True),
    "packed, rotated": Case(lengths=((5, 7), (140, 130)), packed=True, rotate=True),
    "for a softmax scale": Case(softmax_scale=0.3),
    "for a softmax scale, rotated": Case(softmax_scale=64**-0.5, rotate=True),
    "for a softmax scale, zeros": Case(softmax_scale=0.3, fill="zeros"),
    "for a tiny softmax scale": Case(softmax_scale=1e-36),
    "for a huge softmax scale": Case(softmax_scale=1e36),
    "a block of zeros": Case(fill="zeros"),
    "a block of zeros, rotated": Case(fill="zeros", rotate=True),
    "constant blocks": Case(fill="constant"),
    "at 448": Case(fill="448"),
    "tiny": Case(fill="tiny", dtype="float32"),
    "huge": Case(fill="huge", dtype="float32"),
    "huge, rotated": Case(fill="huge", dtype="float32", rotate=True),
    "NaN in one number": Case(fill="nan"),
    "inf in one number": Case(fill="inf"),
    "ties": Case(fill="ties"),
    "keys that no query sees": Case(lengths=((4, 200),), left=20, fill="unseen"),
    "keys that no query sees, packed": Case(lengths=((4, 200), (2, 5)), packed=True, left=20, fill="unseen"),
}
BFLOAT16 = {
    f"bfloat16, {width} wide, {layout}, {'rotated' if rotate else 'plain'}": Case(
        dtype="bfloat16", lengths=((300, 1000),) * 2, width=width, width_v=width, layout=layout, rotate=rotate
    )
    for width in (64, 128, 256)
    for layout in ("bshd", "bhsd")
    for rotate in (False, True)
} | {"bfloat16, huge, rotated": Case(dtype="bfloat16", fill="huge", rotate=True)}


def wrong(case: Case, device: str) -> dict[str, float]:
    """How many codes and scales of each operand are not what torch says; rotated ones may be one step off, seldom."""
    q, k, v = (x.to(device) for x in tensors(case))
    sequences = sequences_of(case, q, k)
    blocks, ahead = case.tiles
    tiles = Tiles(head_dim=0, blocks=blocks, warps=4, stages=2, ahead=ahead, part=case.part)
    found = quantized(q, k, v, sequences, softmax_scale=case.softmax_scale, rotate=case.rotate, tiles=tiles)
    counts: dict[str, float] = {}
    spans = list(zip(*(_spans(case, side) for side in (0, 1)), strict=True))
    for entry, ((q_first, q_length), (k_first, k_length)) in enumerate(spans):
        batch = 0 if case.packed else entry
        begin = max(0, k_length - q_length - case.left) if case.left >= 0 else 0
        for name, x, codes, scale, first, length, hidden in (
            ("q", q, found.q8, found.q_scale, q_first, q_length, 0),
            ("k", k, found.k8, found.k_scale, k_first, k_length, begin),
        ):
            rows = x[batch, :, first : first + length].clone()
            rows[:, :hidden] = 0
            got = codes[batch, :, first : first + length].float()
            _count(
                counts,
                name,
                got,
                scale[entry],
                scores_reference(rows, case, case.softmax_scale if name == "q" else None),
                case.rotate or case.softmax_scale is not None,
            )
        rows = v[batch, :, k_first : k_first + k_length].clone()
        rows[:, :begin] = 0
        places = -(-k_length // BLOCK) * BLOCK
        got = found.vt8[entry, :, :, :places].float()
        again = transposed(_cast(rows), _alone(k_length, q_length, case))[0].float()[..., :places]
        order = key_order(places).to(device)
        got, again = (torch.empty_like(x).index_copy_(2, order, x) for x in (got, again))
        _count(
            counts,
            "v",
            got[..., :k_length].transpose(1, 2),
            found.v_scale[entry],
            reference(rows, VALUE_SCALES),
            False,
        )
        counts["v's tail"] = counts.get("v's tail", 0) + int((got[..., k_length:] != 0).sum())
        want = _cast(rows)[0].float()
        alone = again[..., :k_length].transpose(1, 2)
        counts["transposed"] = counts.get("transposed", 0) + int((alone.nan_to_num(1e3) != want.nan_to_num(1e3)).sum())
    return {name: count for name, count in counts.items() if count}


def _alone(seq_k: int, seq_q: int, case: Case) -> Sequences:
    return Sequences(batch=1, longest_q=seq_q, longest_k=seq_k, left=case.left)


def _cast(rows: torch.Tensor) -> torch.Tensor:
    """[1, H, S, D] e4m3 of about the same numbers."""
    return rows.float().clamp(-448, 448).to(torch.float8_e4m3fn)[None]


def _count(
    counts: dict[str, float], name: str, got: torch.Tensor, scale: torch.Tensor,
    want: tuple[torch.Tensor, torch.Tensor], rotated: bool,
) -> None:  # fmt: skip
    codes, scales = want
    scale = scale[:, : scales.shape[1]]
    off = (scale != scales) if not rotated else ((scale - scales).abs() > 1e-6 * scales)
    counts[f"{name}'s scales"] = counts.get(f"{name}'s scales", 0) + int(off.sum())
    differ = (got != codes) & ~(got.isnan() & codes.isnan())
    if rotated:
        steps = (
            got.to(torch.float8_e4m3fn).view(torch.uint8).int() - codes.to(torch.float8_e4m3fn).view(torch.uint8).int()
        ).abs()
        few = int(differ.sum()) <= max(2, codes.numel() // 500)
        differ = differ & ((steps > 1) if few else torch.ones_like(differ))
        differ &= ~((got.abs() < 2.0**-6) & (codes.abs() < 2.0**-6))  # of either sign
    counts[f"{name}'s codes"] = counts.get(f"{name}'s codes", 0) + int(differ.sum())


def scores_reference(rows: torch.Tensor, case: Case, softmax_scale: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Of Q or K: powers of two, of which the softmax scale's digits are a part where there is one."""
    weight = 1.0 if softmax_scale is None else 2.0 * math.frexp(softmax_scale * math.log2(math.e))[0]
    weight = float(torch.tensor(weight))
    rows = (rotated(rows, case.part) if case.rotate else rows.double()) * weight
    codes, power = reference(rows, SCORE_SCALES, powers=True)
    nothing = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK)) == 0
    return codes, torch.where(nothing.all(3).all(2), 1.0, power / weight)


def reference(
    rows: torch.Tensor, limits: tuple[float, float], *, powers: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes as numbers [H, S, D], scales [H, N]) of one sequence [H, S, D]; powers: of two."""
    tokens = rows.shape[1]
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    whole = torch.nn.functional.pad(rows.to(dtype), (0, 0, 0, -tokens % BLOCK)).unflatten(1, (-1, BLOCK))
    largest = whole.nan_to_num(0.0, math.inf, math.inf).abs().amax(dim=(2, 3))
    scale = largest / torch.tensor(448.0, dtype=dtype, device=rows.device)
    scale = (scale.log2().ceil().exp2() if powers else scale).clamp(*limits)
    scale = torch.where(largest == 0, torch.ones_like(scale), scale)
    scaled = whole * torch.where(largest.isinf(), torch.zeros_like(scale), 1.0 / scale)[..., None, None]
    codes = scaled.clamp(-448, 448).float().to(torch.float8_e4m3fn).float()
    return codes.flatten(1, 2)[:, :tokens], scale.float()


def rotated(rows: torch.Tensor, part: int) -> torch.Tensor:
    """float64 [..., D] times the pass's matrix, columns in the pass's order."""
    width = rows.shape[-1]
    part = min(width, part)
    index = torch.arange(part)
    parity = torch.tensor([[(int(i & j)).bit_count() & 1 for j in index] for i in index])
    words = [int(word.value) for word in (rotation.WORD_0, rotation.WORD_1, rotation.WORD_2, rotation.WORD_3)]
    signs = torch.tensor([words[i // 32] >> (i % 32) & 1 for i in range(part)])
    matrix = (1.0 - 2.0 * ((parity + signs[:, None]) % 2)).double().to(rows.device) / math.sqrt(width)
    parts = rows.double().unflatten(-1, (-1, part)) @ matrix
    butterflies = torch.tensor(
        [[1.0 - 2.0 * ((i & j).bit_count() & 1) for j in range(width // part)] for i in range(width // part)]
    )
    parts = torch.einsum("ij,...jk->...ik", butterflies.to(parts), parts)
    ordered = parts.unflatten(-1, (part // 8, 4, 2)).transpose(-3, -2).flatten(-3)
    return ordered.flatten(-2)


def tensors(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v as [batch or 1, heads, tokens, width]."""
    generator = torch.Generator().manual_seed(7)
    made = []
    for side, heads, width in ((0, HEADS, case.width), (1, KV_HEADS, case.width), (1, KV_HEADS, case.width_v)):
        tokens = sum(length for _first, length in _spans(case, side)) if case.packed else case.lengths[0][side]
        batch = 1 if case.packed else len(case.lengths)
        x = torch.randn(batch, tokens, heads, width * (2 if case.strided else 1), generator=generator)
        _fill(case, x[..., :: 2 if case.strided else 1], side)
        x = x.to(getattr(torch, case.dtype))
        if case.layout == "bhsd":
            x = x.transpose(1, 2).contiguous().transpose(1, 2)
        made.append((x[..., ::2] if case.strided else x).transpose(1, 2))
    return made[0], made[1], made[2]


def _fill(case: Case, x: torch.Tensor, side: int) -> None:
    """Put what is awkward into [batch, tokens, heads, width]."""
    if case.fill == "zeros":
        x[:, :BLOCK] = 0.0
    elif case.fill == "constant":
        x[:, :BLOCK], x[:, BLOCK:] = 0.37, -5.0
    elif case.fill == "448":
        x[:, ::3], x[:, 1::3] = 448.0, -448.0
    elif case.fill in ("tiny", "huge"):
        x *= 1e-38 if case.fill == "tiny" else 1e37
        x[:, 0] = 1e-30 if case.fill == "tiny" else 3e38
    elif case.fill in ("nan", "inf"):
        x[:, 3, :, 5] = getattr(math, case.fill)
    elif case.fill == "ties":
        x[...] = (torch.arange(x.numel()).reshape(x.shape) % 449) * 0.5
        x[:, ::7, 0, 0] = 448.0
    elif case.fill == "unseen" and side == 1:
        for entry, (first, length) in enumerate(_spans(case, 1)):
            seen = max(0, length - case.lengths[entry][0] - case.left)
            x[:, first : first + seen] = math.nan
            x[:, first : first + seen : 2] = 6e4


def _spans(case: Case, side: int) -> list[tuple[int, int]]:
    """(first token in memory, length) of each sequence."""
    lengths = [pair[side] for pair in case.lengths]
    return (
        list(zip(_starts(lengths)[:-1], lengths, strict=True)) if case.packed else [(0, length) for length in lengths]
    )


def _starts(lengths: list[int]) -> list[int]:
    return [sum(lengths[:index]) for index in range(len(lengths) + 1)]


def sequences_of(case: Case, q: torch.Tensor, k: torch.Tensor) -> Sequences:
    """The case's, on q's device."""
    if not case.packed:
        return dense(q, k, case.left)
    starts = [
        torch.tensor(_starts([pair[side] for pair in case.lengths]), dtype=torch.int32, device=q.device)
        for side in (0, 1)
    ]
    return Sequences(
        batch=len(case.lengths),
        longest_q=max(pair[0] for pair in case.lengths),
        longest_k=max(pair[1] for pair in case.lengths),
        starts_q=starts[0],
        starts_k=starts[1],
        left=case.left,
    )


@triton.jit
def epilogue(source, codes, scale, width: tl.constexpr, native: tl.constexpr):
    """What another kernel does with a tile in its registers."""
    places = tl.arange(0, 128)[:, None] * width + tl.arange(0, width)[None, :]
    code, one = quantize_tile(tl.load(source + places), LARGEST_SCORE_SCALE, LEAST_SCORE_SCALE, native)
    tl.store(codes + places, code)
    tl.store(scale, one)


def of_a_tile(device: str) -> dict[str, float]:
    """`quantize_tile` on 128 tokens of a head."""
    rows = torch.randn(1, BLOCK, 64, generator=torch.Generator().manual_seed(1)).to(device)
    codes, scale = torch.empty_like(rows, dtype=torch.float8_e4m3fn), torch.empty(1, 1, device=device)
    epilogue[(1,)](rows, codes, scale, width=64, native=device != "cpu")
    want, want_scale = reference(rows, SCORE_SCALES)
    counts = {"codes": int((codes.float() != want).sum()), "scale": int((scale != want_scale).sum())}
    return {name: count for name, count in counts.items() if count}


EXTRA = {"a tile in registers": of_a_tile}
NAMES = (*CASES, *EXTRA)


def main() -> None:
    """Print every case's faults, from this machine's CPU."""
    found = {name: wrong(case, "cpu") for name, case in CASES.items()}
    json.dump(found | {name: check("cpu") for name, check in EXTRA.items()}, sys.stdout)


if __name__ == "__main__":
    main()
