"""Which packed keys hold something that some row may see, worked out on the device: no lengths reach the host.

A key of a sequence with Sq rows and Sk keys is hidden from all of them if the window of the first row, which stands at
Sk - Sq, starts behind it. Rows of K and V behind the last sequence are nobody's. Kernels give both a weight of 0, and
0 * NaN is NaN: hence zeros in their place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from attn_backends.call import Call


def lengths_of(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """`cu_seqlens_q` and `cu_seqlens_k`, which every packed call has. Raises ValueError for another one."""
    if call.cu_seqlens_q is None or call.cu_seqlens_k is None:
        raise ValueError("a packed call without cu_seqlens_q and cu_seqlens_k: the manifest over-claims")
    return call.cu_seqlens_q, call.cu_seqlens_k


def seen_keys(call: Call) -> torch.Tensor:
    """Bool [Tk, 1, 1]: whether a key belongs to a sequence and no window hides it from all its rows."""
    cu_q, cu_k = lengths_of(call)
    starts, ends = cu_k[:-1], cu_k[1:]
    key = torch.arange(call.k.shape[0], device=call.k.device, dtype=torch.int32)
    owned = key < ends[-1]
    if call.window_left < 0:
        return owned.view(-1, 1, 1)
    first = torch.maximum(ends - (cu_q[1:] - cu_q[:-1]) - call.window_left, starts)
    sequence = torch.searchsorted(ends.contiguous(), key, right=True, out_int32=True).clamp_(max=ends.shape[0] - 1)
    return (owned & (key >= first[sequence])).view(-1, 1, 1)


def only_seen(tensor: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """K or V [Tk, H, D] with zeros at the keys that nobody sees."""
    return torch.where(seen, tensor, tensor.new_zeros(()))
