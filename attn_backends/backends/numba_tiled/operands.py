"""`operands_of`: what the kernel is launched with, from a call. Touches no memory of a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attn_backends.backends.numba_tiled.kernel import ROWS, WIDTHS

if TYPE_CHECKING:
    import torch

    from attn_backends.call import Call

LARGEST = 3.4028234663852886e38  # of float32
SMALLEST = 1.1754943508222875e-38
WIDEST = 1 << 40  # a window that is wider than any sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """One launch: the kernel's arguments in its order, `tensors` first."""

    width: int  # one of WIDTHS
    grid: tuple[int, int, int]
    # q, k, v, out [entries, heads, tokens, width], lse [entries, heads, tokens], where sequences begin in q and in k
    tensors: tuple[torch.Tensor | None, ...]
    numbers: tuple[float, float, int, int, bool]  # scale, softcap, left, right, bottom_right


def operands_of(call: Call, out: torch.Tensor) -> Operands | None:
    """None where there is nothing to write."""
    q, k, v, written = (_heads_first(tensor, call.layout) for tensor in (call.q, call.k, call.v, out))
    starts_q, starts_k, lse = call.cu_seqlens_q, call.cu_seqlens_k, call.lse
    sequences = q.shape[0] if starts_q is None else starts_q.shape[0] - 1
    tiles = -(-(q.shape[2] if starts_q is None else call.max_seqlen_q) // ROWS)
    if not (tiles and sequences and q.shape[1]):
        return None
    left, right = min(call.window_left, WIDEST), 0 if call.causal else min(call.window_right, WIDEST)
    return Operands(
        width=next(width for width in WIDTHS if width >= max(q.shape[3], v.shape[3])),
        grid=(tiles, q.shape[1], sequences),
        tensors=(q, k, v, written, lse if lse is None or lse.dim() == 3 else lse.unsqueeze(0), starts_q, starts_k),
        numbers=(*_factors(call), left, right, call.causal_alignment == "bottom_right"),
    )


def _factors(call: Call) -> tuple[float, float]:
    """What a product is multiplied by, and its tanh: 0 where there is no softcap, or one beyond float32's range."""
    scale, softcap = call.softmax_scale, call.softcap
    if softcap is None or softcap >= LARGEST:
        return _float32(scale), 0.0
    softcap = max(softcap, SMALLEST)
    return _float32(scale / softcap), softcap


def _float32(number: float) -> float:
    return min(max(number, -LARGEST), LARGEST)


def _heads_first(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """[entries, heads, tokens, width]."""
    tensor = tensor.detach()
    if layout == "thd":
        return tensor.unsqueeze(0).transpose(1, 2)
    return tensor if layout == "bhsd" else tensor.transpose(1, 2)
