"""The float mask that kernels add to the scores, and operands in which hidden keys hold nothing.

An empty row is opened (it sees every key, all of them harmless by then) and its output is overwritten later: softmax
over nothing is NaN, and NaN in one row reaches dK and dV. A key that no row sees is zeroed in K and V, since
0 * NaN is NaN and a mask that is added cannot hide it. A key that only some rows see is bounded in K, since a score of
inf beside a mask of -inf is NaN as well.
"""

from __future__ import annotations

import math

import torch

from attn_backends.backends.torch_sdpa.visibility import Visibility


def additive_mask(visible: Visibility, dtype: torch.dtype) -> torch.Tensor:
    """0 or the bias where a key is visible, -inf where it is hidden, 0 in an empty row; broadcast dims stay 1.

    `dtype` is q's, and the result's where the call has no bias of its own or a narrower one; a wider bias keeps its own
    dtype: a cast could turn a finite bias into -inf.
    """
    keys, bias, empty = visible.keys, visible.bias, visible.empty
    if bias is None:
        bias = torch.zeros((), dtype=dtype, device=keys.device)
    bias = bias.to(torch.promote_types(bias.dtype, dtype))
    mask = torch.where(keys, bias, -torch.inf)
    return mask if empty is None else torch.where(empty, torch.zeros_like(mask), mask)


def without_hidden_keys(tensor: torch.Tensor, visible: Visibility) -> torch.Tensor:
    """K or V [B, Hkv, keys, D] with zeros at the keys that no row sees."""
    return tensor if visible.seen is None else torch.where(visible.seen, tensor, tensor.new_zeros(()))


def scores_may_overflow(dtype: torch.dtype, width: int, scale: float) -> bool:
    """Whether finite q and k of that dtype and width can make a score that a kernel cannot hold."""
    largest = torch.finfo(dtype).max
    return largest * largest > _room(dtype, width, scale)


def with_finite_scores(k: torch.Tensor, q: torch.Tensor, scale: float) -> torch.Tensor:
    """K bounded so that no score overflows: what is out of bounds decides every row that sees it all the same.

    The bound is max / (4 |scale| D |q|), where 4 is for rounding and log2(e); never below sqrt(max), so that one wild
    query bounds no ordinary key.
    """
    if q.numel() == 0:
        return k
    wide = torch.promote_types(q.dtype, torch.float32)
    largest = torch.finfo(wide).max
    bound = (_room(q.dtype, q.shape[-1], scale) / q.abs().amax().to(wide)).nan_to_num(0.0, largest)
    bound = bound.clamp(min=math.sqrt(largest)).to(k.dtype)
    return k.clamp(-bound, bound)


def _room(dtype: torch.dtype, width: int, scale: float) -> float:
    """How large |q| |k| may be, element by element; kernels compute in float32, in float64 for float64."""
    return torch.finfo(torch.promote_types(dtype, torch.float32)).max / (4 * max(abs(scale), 1.0) * width)


def without_empty_rows(tensor: torch.Tensor, visible: Visibility | None) -> torch.Tensor:
    """Q or dO [B, Hq, rows, D] with zeros in the rows that see nothing."""
    if visible is None or visible.empty is None:
        return tensor
    return torch.where(visible.empty, tensor.new_zeros(()), tensor)


def padded_rows(mask: torch.Tensor, batch: int, heads: int, rows: int, keys: int) -> torch.Tensor:
    """The mask expanded to [batch, heads, rows, keys] over memory whose rows start on multiples of 16 elements."""
    wide = -(-keys // 16) * 16
    memory = mask.new_empty((mask.shape[0], mask.shape[1], rows, wide))
    view = memory[..., :keys]
    view.copy_(mask.expand(mask.shape[0], mask.shape[1], rows, keys))
    return view.expand(batch, heads, rows, keys)
