"""The backend's door: `run`. Loaded by the registry, by name.

Tensors are taken as they lie, through numpy views without copies, except a float mask of 16 bits and an output that is not
float32, which is converted behind the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import torch

from attn_backends.backends.numba_cpu.blas import in_turn
from attn_backends.backends.numba_cpu.compiling import kernel
from attn_backends.backends.numba_cpu.operands import arrays_of, asked_of, band_of, masks_of, numbers_of, spans_of
from attn_backends.backends.numba_cpu.tasks import dealt, tasks_of
from attn_backends.backends.numba_cpu.team import side_by_side, team

if TYPE_CHECKING:
    from attn_backends.call import Call


def run(call: Call) -> None:
    """Write call.out and, where asked, call.lse; rows of no sequence get 0 and -inf."""
    out = call.out if call.out.dtype == torch.float32 else torch.empty_like(call.out, dtype=torch.float32)
    lse = call.lse if call.lse is not None else _rows_of(call)
    if call.cu_seqlens_q is not None:
        out.zero_()
        lse.fill_(float("-inf"))
    tensors = arrays_of(call, out, lse)
    heads, kv_heads = tensors.q.shape[1], tensors.k.shape[1]
    tasks = tasks_of(spans_of(call), kv_heads, heads // kv_heads, band_of(call))
    with in_turn(), team():
        launch = kernel(str(tensors.q.dtype), side_by_side())
        launch(
            dealt(tasks, numba.get_num_threads()), tensors.q, tensors.k, tensors.v, tensors.table, *masks_of(call), asked_of(call), numbers_of(call),
            tensors.out, tensors.lse,
        )  # fmt: skip
    if out is not call.out:
        call.out.copy_(out)


def _rows_of(call: Call) -> Any:
    """Room for an LSE that nobody asked for: [B, H, S] or [H, T]."""
    shape = call.q.shape
    if call.layout == "bhsd":
        return torch.empty(shape[:3], dtype=torch.float32)
    if call.layout == "bshd":
        return torch.empty((shape[0], shape[2], shape[1]), dtype=torch.float32)
    return torch.empty((shape[1], shape[0]), dtype=torch.float32)
