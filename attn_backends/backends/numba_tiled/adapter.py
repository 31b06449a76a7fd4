"""The backend's door: `run`. Loaded by the registry, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from attn_backends.backends.numba_tiled.kernel import ROWS, SIDE, WIDTHS, kernel_for
from attn_backends.backends.numba_tiled.toolchain import cuda, float32, int64

if TYPE_CHECKING:
    from attn_backends.call import Call

_LARGEST = 3.4028234663852886e38  # of float32
_SMALLEST = 1.1754943508222875e-38


def run(call: Call) -> None:
    """Write call.out and, where asked, call.lse; rows of no sequence get 0 and -inf."""
    out = (
        call.out
        if call.out.dtype in (torch.float32, torch.float16)
        else torch.empty_like(call.out, dtype=torch.float32)
    )
    lse = torch.empty(_rows(call), dtype=torch.float32, device=call.q.device) if call.lse is None else call.lse
    if call.cu_seqlens_q is not None:
        out.zero_()
        lse.fill_(float("-inf"))
    q, k, v, written = (_heads_first(tensor, call.layout) for tensor in (call.q, call.k, call.v, out))
    sequences = q.shape[0] if call.cu_seqlens_q is None else call.cu_seqlens_q.shape[0] - 1
    tiles = -(-(call.max_seqlen_q if call.cu_seqlens_q is not None else q.shape[2]) // ROWS)
    if not (tiles and sequences):
        return
    right = 0 if call.causal else call.window_right
    arrays = map(_array, (q, k, v, written, lse if lse.dim() == 3 else lse.unsqueeze(0)))
    launch = kernel_for(next(width for width in WIDTHS if width >= max(q.shape[3], v.shape[3])))
    launch[(tiles, q.shape[1], sequences), (SIDE, SIDE), _stream(q)](
        *arrays, _starts(call.cu_seqlens_q, q), _starts(call.cu_seqlens_k, q), float32(call.softmax_scale),
        float32(_cap(call)), int64(call.window_left), int64(right), call.causal_alignment == "bottom_right",
    )  # fmt: skip
    if out is not call.out:
        call.out.copy_(out)


def _cap(call: Call) -> float:
    """The softcap in float32, 0 where there is none: one beyond its range is none, one below it its least number."""
    if call.softcap is None or call.softcap >= _LARGEST:
        return 0.0
    return max(call.softcap, _SMALLEST)


def _heads_first(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """[entries, heads, tokens, width]."""
    tensor = tensor.detach()
    if layout == "thd":
        return tensor.unsqueeze(0).transpose(1, 2)
    return tensor if layout == "bhsd" else tensor.transpose(1, 2)


def _rows(call: Call) -> tuple[int, ...]:
    """The shape of an LSE."""
    shape = call.q.shape
    if call.layout == "thd":
        return shape[1], shape[0]
    return (shape[0], shape[2], shape[1]) if call.layout == "bshd" else tuple(shape[:3])


def _array(tensor: torch.Tensor) -> Any:
    """The same memory as numba sees it. In numba's simulator a CPU's memory stands for the GPU's, of any strides."""
    if tensor.is_cuda:
        return cuda.as_cuda_array(tensor, sync=False)
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    return FakeCUDAArray(tensor.numpy())


def _starts(starts: torch.Tensor | None, like: torch.Tensor) -> Any:
    if starts is not None:
        return _array(starts)
    return _array(torch.zeros(1, dtype=torch.int32, device=like.device))


def _stream(tensor: torch.Tensor) -> Any:
    """torch's current stream."""
    return cuda.external_stream(torch.cuda.current_stream(tensor.device).cuda_stream) if tensor.is_cuda else 0
