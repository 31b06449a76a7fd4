"""`Rows`: one packed call in the form that FlashAttention kernels take, and `prepare`, which brings it there.

Rows of 16-byte vectors, head widths padded as the kernel needs, a scale above zero (its sign is moved into q), windows
with -1 for "unbounded" and 0 on the right for causal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from attn_backends.backends.packed_flash.keys import lengths_of, only_seen, seen_keys
from attn_backends.backends.torch_sdpa import operands

if TYPE_CHECKING:
    from attn_backends.backends.torch_sdpa.problem import Needs
    from attn_backends.call import Call

LEAST_MAX = 2  # kernels rearrange calls whose longest query is 1, for sequences of exactly one row each


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """q [Tq, Hq, D'], k [Tk, Hkv, D'], v [Tk, Hkv, Dv'] with padded widths; `cu_q`, `cu_k` int32 [B + 1], contiguous.

    `max_q`, `max_k` bound the lengths.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cu_q: torch.Tensor
    cu_k: torch.Tensor
    scale: float
    sign: float
    left: int
    right: int
    max_q: int
    max_k: int

    @property
    def causal(self) -> bool:
        """Whether later keys are hidden and nothing else is."""
        return self.right == 0 and self.left < 0


def is_blank(call: Call) -> bool:
    """Whether there is nothing to see, by shapes alone: no sequence or no key. The host takes care of no query."""
    return lengths_of(call)[0].shape[0] < 2 or call.k.shape[0] == 0


def prepare(call: Call, needs: Needs, *, clear_k: bool, clear_v: bool) -> Rows:
    """The operands; `clear_k`, `clear_v`: whether K and V need zeros where nobody looks."""
    sign = operands.sign_of(call.softmax_scale)
    cu_q, cu_k = lengths_of(call)
    width_qk, width_v = needs.widths(call.q.shape[-1], call.v.shape[-1])
    seen = seen_keys(call) if clear_k or clear_v else None
    k = call.k if seen is None or not clear_k else only_seen(call.k, seen)
    v = call.v if seen is None or not clear_v else only_seen(call.v, seen)
    return Rows(
        q=_fitted(operands.signed(call.q, sign), width_qk), k=_fitted(k, width_qk), v=_fitted(v, width_v),
        cu_q=cu_q.contiguous(), cu_k=cu_k.contiguous(), scale=call.softmax_scale if sign == 1 else abs(call.softmax_scale) or 1.0, sign=sign,
        left=call.window_left, right=0 if call.causal else call.window_right,
        max_q=max(call.max_seqlen_q, LEAST_MAX), max_k=_bound_of_keys(call),
    )  # fmt: skip


def _bound_of_keys(call: Call) -> int:
    """An upper bound of the key lengths.

    Kernels take a right window of that many keys for none, and none for one of that many: where rows outnumber keys,
    both are true only of a bound that counts the rows too.
    """
    windowed = call.window_left >= 0 or call.window_right >= 0
    return max(call.max_seqlen_k, 1) + (call.max_seqlen_q if windowed else 0)


def _fitted(tensor: torch.Tensor, width: int) -> torch.Tensor:
    return operands.vectorised(operands.pad_width(tensor, width))
