"""From tensors to `Operands`: `quantized` for numbers of 16 or 32 bits, `transposed` for a V that came as codes."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch

from attn_backends.backends.fp8.block import BLOCK
from attn_backends.backends.fp8.operands import FORMAT, Operands, blocks_of
from attn_backends.backends.fp8.quantize.kernel import quantize_operands
from attn_backends.backends.fp8.quantize.tiles import Tiles, tiles_for
from attn_backends.backends.fp8.quantize.transpose import transpose_codes

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

LOG2_E = math.log2(math.e)
_WIDEST = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Where sequences lie; dense: starts are None.

    batch: of sequences; longest_q, longest_k: tokens; starts_q, starts_k: int32 [batch + 1]
    left: keys that a query sees before its own, -1 = all; those that no query sees count as 0
    """

    batch: int
    longest_q: int
    longest_k: int
    starts_q: torch.Tensor | None = None
    starts_k: torch.Tensor | None = None
    left: int = -1


def dense(q: torch.Tensor, k: torch.Tensor, left: int = -1) -> Sequences:
    """Of q [B, Hq, Sq, D] and k [B, Hkv, Sk, D]."""
    return Sequences(batch=q.shape[0], longest_q=q.shape[2], longest_k=k.shape[2], left=left)


def quantized(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sequences: Sequences | None = None,
    *,
    softmax_scale: float | None = None,
    rotate: bool = True,
    tiles: Tiles | None = None,
) -> Operands:
    """All three in one launch; nothing is read twice.

    q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv]: views with any strides; packed [1, Hq, Tq, D] and so on.
    bfloat16, float16 or float32. sequences: None for dense; softmax_scale: of the call that will read them, positive; operands
    stand for the same with or without, and are attended faster with. rotate: Q and K by the random Hadamard matrix; tiles: in
    place of the shipped ones, to measure them.
    """
    sequences = dense(q, k) if sequences is None else sequences
    tiles = tiles_for(architecture(q.device), max(q.shape[3], v.shape[3])) if tiles is None else tiles
    operands = _room(q, k, v, sequences, softmax_scale)
    blocks_q, blocks_k = operands.q_scale.shape[2], operands.k_scale.shape[2]
    heads_q, heads_k = q.shape[1], k.shape[1]
    programs = sequences.batch * (heads_q * -(-blocks_q // tiles.blocks) + 2 * heads_k * -(-blocks_k // tiles.blocks))
    windowed = sequences.left >= 0
    packed_q, packed_k = sequences.starts_q is not None, sequences.starts_k is not None
    with on_device(q.device):
        quantize_operands[(programs,)](
            q, k, v, operands.q8, operands.k8, operands.vt8.view(torch.int32), operands.q_scale, operands.k_scale, operands.v_scale,
            sequences.starts_q, sequences.starts_k,
            q.stride(), k.stride(), v.stride(), operands.q8.stride(), operands.k8.stride(), operands.vt8.stride(2) // 4,
            sequences.longest_q, sequences.longest_k, heads_q, heads_k, sequences.batch, sequences.left, tiles.blocks,
            1.0 if softmax_scale is None else significand(softmax_scale * LOG2_E),
            D=q.shape[3], DV=v.shape[3], ROTATE=rotate, PART=min(q.shape[3], tiles.part), LEFT=windowed,
            PACKED_Q=packed_q, PACKED_K=packed_k,
            CHECKED_Q=packed_q or sequences.longest_q % BLOCK != 0,
            CHECKED_K=packed_k or windowed or sequences.longest_k % BLOCK != 0,
            HEADS_FIRST=q.stride(1) < q.stride(2), WIDE=leaves_32_bits(q, k, v), NATIVE=q.device.type != "cpu",
            STAGES=tiles.stages, AHEAD=tiles.ahead, GIVES_WAY=architecture(q.device) >= 90, num_warps=tiles.warps,
            **({"maxnreg": tiles.registers} if tiles.registers else {}),
        )  # fmt: skip
    return operands


def transposed(v8: torch.Tensor, sequences: Sequences) -> torch.Tensor:
    """vt8 [B, Hkv, Dv, Sp] of `Operands` out of e4m3 v8 [B, Hkv, Sk, Dv], packed [1, Hkv, Tk, Dv], any strides."""
    heads, width = v8.shape[1], v8.shape[3]
    vt8 = _room_transposed(v8, sequences)
    packed = sequences.starts_k is not None
    tokens = sequences.longest_k
    with on_device(v8.device):
        transpose_codes[(sequences.batch * heads * blocks_of(tokens),)](
            v8.view(torch.uint8), vt8.view(torch.int32), sequences.starts_k, sequences.starts_q, v8.stride(), vt8.stride(2) // 4,
            tokens, sequences.longest_q, heads, sequences.left,
            D=width, LEFT=sequences.left >= 0, PACKED=packed, WIDE=leaves_32_bits(v8),
        )  # fmt: skip
    return vt8


def significand(x: float) -> float:
    """A positive number over the largest power of two that is not above it: its digits, 1 to 2."""
    return 2.0 * math.frexp(x)[0]


@cache
def architecture(device: torch.device) -> int:
    """Compute capability as major * 10 + minor; 0 without a GPU (the interpreter)."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _room(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sequences: Sequences, softmax_scale: float | None
) -> Operands:
    """Operands with nothing in them yet."""
    batch, blocks_q, blocks_k = sequences.batch, blocks_of(sequences.longest_q), blocks_of(sequences.longest_k)
    return Operands(
        q8=torch.empty(q.shape, dtype=FORMAT, device=q.device),
        k8=torch.empty(k.shape, dtype=FORMAT, device=q.device),
        vt8=_room_transposed(v, sequences),
        q_scale=torch.empty((batch, q.shape[1], blocks_q), dtype=torch.float32, device=q.device),
        k_scale=torch.empty((batch, k.shape[1], blocks_k), dtype=torch.float32, device=q.device),
        v_scale=torch.empty((batch, v.shape[1], blocks_k), dtype=torch.float32, device=q.device),
        longest_q=sequences.longest_q,
        longest_k=sequences.longest_k,
        softmax_scale=softmax_scale,
        starts_q=sequences.starts_q,
        starts_k=sequences.starts_k,
    )


def _room_transposed(v: torch.Tensor, sequences: Sequences) -> torch.Tensor:
    places = blocks_of(sequences.longest_k) * BLOCK
    return torch.empty((sequences.batch, v.shape[1], v.shape[3], places), dtype=FORMAT, device=v.device)


def leaves_32_bits(*tensors: torch.Tensor) -> bool:
    """Whether an offset inside a block of 128 tokens of [batch, head, token, width] does not fit 32 bits."""
    return any(BLOCK * abs(t.stride(2)) + _WIDEST * abs(t.stride(3)) >= 2**31 for t in tensors)
