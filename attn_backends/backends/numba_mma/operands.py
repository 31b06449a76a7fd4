"""`operands_of`: what a kernel is launched with, from a call. Touches no memory of a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from attn_backends.call import Call

LARGEST = 1e38  # a softcap beyond it is none: float32 ends there, and no score reaches it
SMALLEST = 1.1754943508222875e-38  # of float32, with all its digits
FLOAT32 = 3.4028234663852886e38
LOG2_E = 1.4426950408889634
WIDEST = 1 << 40  # a window that is wider than any sequence
ORDER = {"bshd": (0, 2, 1), "bhsd": (0, 1, 2), "thd": (None, 1, 0)}  # where entries, heads and tokens are
Grid = tuple[int, int, int]


def operands_of(call: Call, out: torch.Tensor, rows: int) -> tuple[Grid, tuple[Any, ...]] | None:
    """(grid, parameters of the kernel in its order), for blocks of `rows` queries; None where there is nothing to write."""
    q, k, starts_q, starts_k, lse = call.q, call.k, call.cu_seqlens_q, call.cu_seqlens_k, call.lse
    entry, head, token = ORDER[call.layout]
    sizes = q.shape
    heads, tokens = sizes[head], sizes[token]
    sequences = sizes[0] if starts_q is None else starts_q.shape[0] - 1
    layers = sequences if starts_q is None else sequences + 1
    if not (heads and tokens and layers):
        return None
    longest = tokens if starts_q is None else call.max_seqlen_q
    left, right = min(call.window_left, WIDEST), 0 if call.causal else min(call.window_right, WIDEST)
    scale, cap = _factors(call.softmax_scale, call.softcap)
    return (max(1, -(-longest // rows)), heads, layers), (
        q.data_ptr(), k.data_ptr(), call.v.data_ptr(), out.data_ptr(), 0 if lse is None else lse.data_ptr(),
        0 if starts_q is None else starts_q.data_ptr(), 0 if starts_k is None else starts_k.data_ptr(),
        *_steps(q, entry, head, token), *_steps(k, entry, head, token), *_steps(call.v, entry, head, token),
        *_steps(out, entry, head, token), *_lse_steps(lse),
        tokens, k.shape[token], heads // max(1, k.shape[head]), sequences, left, right,
        1 if call.causal_alignment == "bottom_right" else 0, scale, cap,
    )  # fmt: skip


def _steps(tensor: torch.Tensor, entry: int | None, head: int, token: int) -> tuple[int, int, int]:
    """Bytes from one entry, head and token to the next; numbers have two.

    The stride of a single token means nothing, and may be odd; but even a copy that reads nothing wants an aligned address.
    """
    strides = tensor.stride()
    row = 2 * strides[token] if tensor.shape[token] > 1 else 0
    return 0 if entry is None else 2 * strides[entry], 2 * strides[head], row


def _lse_steps(lse: torch.Tensor | None) -> tuple[int, int, int]:
    """Of [B, Hq, Sq], or packed [Hq, Tq]; numbers have four bytes."""
    if lse is None:
        return 0, 0, 0
    *entry, head, token = lse.stride()
    return 4 * entry[0] if entry else 0, 4 * head, 4 * token


def capped(call: Call) -> bool:
    """Whether there is a softcap that any score could feel."""
    return call.softcap is not None and call.softcap < LARGEST


def _factors(scale: float, softcap: float | None) -> tuple[float, float]:
    """What a product is multiplied by, and its tanh where there is a softcap. Scores count in log2."""
    if softcap is None or softcap >= LARGEST:
        return _float32(scale * LOG2_E), 0.0
    softcap = max(softcap, SMALLEST)
    return _float32(scale / softcap), softcap * LOG2_E


def _float32(number: float) -> float:
    return min(max(number, -FLOAT32), FLOAT32)
