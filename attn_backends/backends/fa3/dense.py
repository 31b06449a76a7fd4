"""Dense calls on FlashAttention-3: operands in [B, S, H, D], the output written in place wherever its memory allows it.

Bottom-right causal; rows that see nothing are cut off before the kernel; query heads are grouped by the kernel. It
takes K and V of two widths only for some pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attn_backends.backends.fa3 import kernel
from attn_backends.backends.torch_sdpa import deliver, operands
from attn_backends.backends.torch_sdpa.layout import heads_first
from attn_backends.backends.torch_sdpa.problem import Needs, Problem, prepare

if TYPE_CHECKING:
    from attn_backends.call import Call

ALIKE = Needs(diagonals=("bottom_right",), masks=False, width_multiple=8, equal_widths=True, vectors=True)
APART = Needs(diagonals=("bottom_right",), masks=False, width_multiple=8, equal_widths=False, vectors=True)
LARGEST = 3e38  # a softcap beyond it caps no float32


def needs_of(call: Call) -> Needs:
    """What the kernel needs for the head widths of a call."""
    width_qk, width_v = APART.widths(call.q.shape[-1], call.v.shape[-1])
    pair = (128 < width_qk <= 192 and 96 < width_v <= 128) or width_qk <= 64
    return APART if pair else ALIKE


def run_dense(call: Call, needs: Needs, **descales: torch.Tensor) -> None:
    """Write `call.out` and, where asked, `call.lse`; `descales`: float32 [B, Hkv] by the operator's names."""
    problem = prepare(call, needs)
    if problem.band.blank:
        deliver.deliver_blank(call)
        return
    out, lse = _attend(call, problem, descales)
    deliver.deliver(call, problem, out.transpose(1, 2), lse)


def _attend(call: Call, problem: Problem, descales: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = (tensor.transpose(1, 2) for tensor in (problem.q, problem.k, problem.v))
    out, lse, *_ = kernel.forward(
        q, k, v, out=_in_place(call, problem), softmax_scale=problem.scale, is_causal=problem.causal,
        softcap=softcap_of(call), num_splits=splits_of(call), **descales,
    )  # fmt: skip
    return out, lse


def _in_place(call: Call, problem: Problem) -> torch.Tensor | None:
    """The rows of `call.out` that the kernel is to write, as [B, rows, Hq, Dv]; None where it needs memory of its own."""
    band, out = problem.band, heads_first(call.out, call.layout)
    rows = out[:, :, band.first_row : band.end_row]
    return operands.vectorised(rows).transpose(1, 2) if takes_output(rows, problem.v) else None


def takes_output(out: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether the kernel may write into `out`: of the dtype that it answers in, as wide as its V, in rows of 16 bytes."""
    own = torch.bfloat16 if v.element_size() == 1 else v.dtype
    return out.dtype == own and out.shape[-1] == v.shape[-1] and operands.is_vectorised(out)


def softcap_of(call: Call) -> float:
    """The cap as the kernel takes it, 0 = none."""
    return 0.0 if call.softcap is None or call.softcap > LARGEST else call.softcap


def splits_of(call: Call) -> int:
    """In how many parts the keys are attended to: as the kernel likes (0), or 1 where the batch must not matter."""
    return 1 if call.batch_invariant else 0
