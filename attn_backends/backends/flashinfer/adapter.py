"""FlashInfer's batch kernels ("fa2" backend): q as rows [T, Hq, D], K and V as pages or rows, base-2 LSE [T, Hq].

One wrapper serves decode, append and prefill: with one row per sequence it runs the very kernel of FlashInfer's
tensor-core decode. Loading this module imports FlashInfer; the first call of a dtype and head width compiles its kernel
with nvcc, unless FlashInfer has it already.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from attn_backends.backends.flashinfer.pages import pages_in_use
from attn_backends.backends.flashinfer.plans import Plan, Shape, plans_of
from attn_backends.backends.flashinfer.readings import Readings
from attn_backends.backends.flashinfer.requests import Requests, requests_of
from attn_backends.backends.flashinfer.scaling import split_scale
from attn_backends.backends.torch_sdpa import operands

if TYPE_CHECKING:
    from attn_backends.call import Call

LN_2 = math.log(2.0)
_readings = Readings()


def run(call: Call) -> None:
    """Write `call.out` and, where asked, `call.lse`."""
    requests = _requests(call)
    if requests.blank:
        call.out.zero_()
        if call.lse is not None:
            call.lse.fill_(-torch.inf)
        return
    factor, scale = split_scale(call.softmax_scale * _number(call.k_descale))
    k, v = _keys_and_values(call)
    total = requests.total_rows
    out, lse = _room_for_out(call, total), _room_for_lse(call, total)
    shape = _shape(call, requests, scale)
    plans = plans_of(call.q.device, call.kv_layout if shape.page_size is not None else "packed")
    with plans.lock:
        plan = plans.find(shape, requests.page_starts(shape.page_size)[-1] if shape.page_size is not None else 0)
        _launch(call, plan, (_rows(call, factor, total), k, v), out, lse, scale)
    _deliver_out(call, out, plan.empty)
    if lse is not None:
        _deliver_lse(call, lse, plan.empty)


def conversions(call: Call) -> list[tuple[str, int]]:
    """What `run` is going to convert, with its bytes; q is scaled on its way and costs no copy of its own."""
    copied = sum(tensor.numel() * tensor.element_size() for tensor in (call.k, call.v)) if _copies(call) else 0
    return [("make_contiguous", copied)] if copied else []


def _requests(call: Call) -> Requests:
    """The call's sequences; lengths that only tensors know are read, which waits for the stream."""
    packed = call.layout == "thd"
    rows = _steps(call.cu_seqlens_q) if packed else (call.q.shape[1],) * call.q.shape[0]
    if call.block_table is not None:
        keys = _whole(call.seq_lens)
    else:
        keys = _steps(call.cu_seqlens_k) if packed else (call.k.shape[1],) * call.q.shape[0]
    return requests_of(rows, keys, causal=call.causal)


def _shape(call: Call, requests: Requests, scale: float) -> Shape:
    paged = call.block_table is not None
    heads_first = paged and call.kv_layout == "HND"
    return Shape(
        requests=requests, heads=call.q.shape[-2], kv_heads=call.k.shape[-3 if heads_first else -2],
        width=call.q.shape[-1], page_size=call.k.shape[-2 if heads_first else -3] if paged else None,
        q_dtype=call.q.dtype, kv_dtype=call.k.dtype, causal=call.causal and max(requests.rows) > 1,
        window_left=-1 if call.window_left >= max(requests.keys) else call.window_left, scale=1.0 if paged else scale,
    )  # fmt: skip


def _launch(
    call: Call, plan: Plan, tensors: tuple[torch.Tensor, ...], out: torch.Tensor, lse: torch.Tensor | None, scale: float
) -> None:
    q, k, v = tensors
    if plan.pages is None:
        plan.wrapper.run(q, k, v, out=out, lse=lse, return_lse=lse is not None)
        return
    if call.block_table is not None and call.seq_lens is not None and not plan.table.again(call.block_table):
        page_size = k.shape[1 if call.kv_layout == "NHD" else 2]
        plan.pages.copy_(pages_in_use(call.block_table, call.seq_lens, page_size, plan.pages.shape[0]))
    plan.wrapper.run(q, (k, v), q_scale=scale, out=out, lse=lse, return_lse=lse is not None)


def _rows(call: Call, factor: float, total: int) -> torch.Tensor:
    """q times the factor, as contiguous rows [total, Hq, D]."""
    rows = torch.empty(call.q.shape, dtype=call.q.dtype, device=call.q.device)
    torch.mul(call.q, factor, out=rows)
    return rows.view(-1, *rows.shape[-2:])[:total]


def _keys_and_values(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V where they lie if the kernel can read them there; pages keep their shape, dense tensors become rows."""
    k, v = (call.k.contiguous(), call.v.contiguous()) if _copies(call) else (call.k, call.v)
    k, v = operands.vectorised(k), operands.vectorised(v)
    return (k, v) if call.layout == "thd" or call.block_table is not None else (k.flatten(0, 1), v.flatten(0, 1))


def _copies(call: Call) -> bool:
    """Whether K and V are copied: vectors of 16 bytes, pages at the same strides in both, dense tensors as rows."""
    k, v = call.k, call.v
    if not (operands.is_vectorised(k) and operands.is_vectorised(v)):
        return True
    if call.block_table is not None:
        return operands.vectorised(k).stride() != operands.vectorised(v).stride()
    return call.layout != "thd" and not (_is_rows(k) and _is_rows(v))


def _is_rows(tensor: torch.Tensor) -> bool:
    """Whether the sequences [B, S, H, D] follow each other at one stride."""
    batch, seq = tensor.shape[:2]
    return batch == 1 or seq == 1 or tensor.stride(0) == seq * tensor.stride(1)


def _room_for_out(call: Call, total: int) -> torch.Tensor:
    """[total, Hq, D], contiguous, in q's dtype: the caller's own memory where it is that."""
    if call.out.dtype == call.q.dtype and call.out.is_contiguous():
        return call.out.view(-1, *call.out.shape[-2:])[:total]
    return call.q.new_empty((total, call.q.shape[-2], call.out.shape[-1]))


def _room_for_lse(call: Call, total: int) -> torch.Tensor | None:
    return None if call.lse is None else call.lse.new_empty((total, call.q.shape[-2]))


def _deliver_out(call: Call, out: torch.Tensor, empty: torch.Tensor | None) -> None:
    if call.v_descale is not None:
        out.mul_(call.v_descale)
    if empty is not None:
        out.index_fill_(0, empty, 0.0)
    if call.layout == "thd":
        call.out[out.shape[0] :].zero_()
        inside = call.out[: out.shape[0]]
    else:
        inside, out = call.out, out.view(call.out.shape)
    if inside.data_ptr() != out.data_ptr():
        inside.copy_(out)


def _deliver_lse(call: Call, lse: torch.Tensor, empty: torch.Tensor | None) -> None:
    """From base 2 [T, Hq] to the natural logarithm in the caller's order."""
    if empty is not None:
        lse.index_fill_(0, empty, -torch.inf)
    assert call.lse is not None
    if call.layout == "thd":
        call.lse[:, lse.shape[0] :].fill_(-torch.inf)
        call.lse[:, : lse.shape[0]].copy_(lse.mul_(LN_2).t())
    else:
        batch, heads, seq = call.lse.shape
        call.lse.copy_(lse.mul_(LN_2).view(batch, seq, heads).transpose(1, 2))


def _steps(cu_seqlens: torch.Tensor | None) -> tuple[int, ...]:
    """Lengths out of their cumulative sums."""
    return tuple(after - before for before, after in pairwise(_whole(cu_seqlens)))


def _whole(lengths: torch.Tensor | None) -> tuple[int, ...]:
    if lengths is None:
        raise ValueError("a call without its lengths: the manifest over-claims")
    return tuple(int(number) for number in _readings.numbers(lengths))


def _number(descale: torch.Tensor | None) -> float:
    """A descale per tensor as a number; 1 where there is none."""
    return 1.0 if descale is None else float(_readings.numbers(descale)[0])
