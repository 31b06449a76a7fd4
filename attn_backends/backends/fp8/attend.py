"""Which of the two kernels serves which operands: Hopper's pipeline dense calls on sm_90, the portable one all others."""

from __future__ import annotations

import dataclasses
import math

import torch

from attn_backends.backends.fp8.operands import Operands
from attn_backends.backends.fp8.portable.launch import launch_forward as launch_portable
from attn_backends.backends.fp8.quantize.launch import architecture

HOPPER = 90
_LEAST = 1.2e-38  # of the scales that float32 holds and the GPU does not take for 0
_MOST = 2.0**126  # of the softmax scale in the kernels
_SIGN = 0x80  # of a code


def attend(
    operands: Operands, out: torch.Tensor, lse: torch.Tensor | None, scale: float, band: tuple[int, int]
) -> None:
    """Write `out` and, where given, `lse`; shapes and `band` as in `portable.launch`."""
    operands, scale = with_finite_scale(operands, scale)
    if pipelined(operands, out, band):
        _attend_on_hopper(operands, out, lse, scale, band[1] == 0)
    else:
        launch_portable(operands, out, lse, scale, band)


def pipelined(operands: Operands, out: torch.Tensor, band: tuple[int, int]) -> bool:
    """Whether Hopper's pipeline takes the call: dense, full or causal, one width, operands that TMA describes."""
    if architecture(out.device) != HOPPER:
        return False
    from attn_backends.backends.hopper.descriptors import describable

    return (
        operands.starts_q is None
        and operands.starts_k is None
        and band in ((-1, -1), (-1, 0))
        and operands.q8.shape[3] == operands.vt8.shape[2]
        and out.dtype in (torch.bfloat16, torch.float16)
        and describable(operands.q8)
        and describable(operands.k8)
    )


def _attend_on_hopper(
    operands: Operands, out: torch.Tensor, lse: torch.Tensor | None, scale: float, causal: bool
) -> None:
    """The pipeline wants a positive scale, an LSE and an output that TMA describes."""
    from attn_backends.backends.fp8.hopper.launch import launch_forward
    from attn_backends.backends.hopper.descriptors import describable

    room = out if describable(out) else torch.empty(out.shape, dtype=out.dtype, device=out.device)
    rows = torch.empty(out.shape[:3], dtype=torch.float32, device=out.device) if lse is None else lse
    operands, scale = with_positive_scale(operands, scale)
    launch_forward(operands, room, rows, scale, causal)
    if room is not out:
        out.copy_(room)


def with_positive_scale(operands: Operands, scale: float) -> tuple[Operands, float]:
    """The same scores from a positive scale: the kernel looks for the largest one before it scales them."""
    if scale >= _LEAST:
        return operands, scale
    codes = operands.q8.view(torch.uint8)
    flipped = codes ^ _SIGN if scale <= -_LEAST else torch.zeros_like(codes)
    return dataclasses.replace(operands, q8=flipped.view(operands.q8.dtype)), positive(scale)


def with_finite_scale(operands: Operands, scale: float) -> tuple[Operands, float]:
    """The same scores from a scale that stays one of float32's when it is multiplied by log2(e); a caller's 0 stays 0.

    What it is larger by goes into q's descales, which end with float32. The pass's own scales are none of 0.
    """
    if abs(scale) <= _MOST or operands.softmax_scale is not None:
        return operands, scale
    power = 2.0 ** min(math.ceil(math.log2(abs(scale) / _MOST)), 126)
    largest = torch.finfo(torch.float32).max
    moved = (operands.q_scale * power).clamp(-largest, largest)  # a NaN stays one
    return dataclasses.replace(operands, q_scale=moved), max(-_MOST, min(scale / power, _MOST))


def positive(scale: float) -> float:
    """The scale that the kernel is given: its size, or 1 where that is nothing."""
    return abs(scale) if abs(scale) >= _LEAST else 1.0
