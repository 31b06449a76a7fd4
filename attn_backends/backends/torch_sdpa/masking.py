"""The float mask that kernels add to the scores, and operands in which hidden keys hold nothing.

An empty row is opened (it sees every key, all of them harmless by then) and its output is overwritten later: softmax
over nothing is NaN, and NaN in one row reaches dK and dV. A key that no row sees is zeroed in K and V, since
0 * NaN is NaN and a mask that is added cannot hide it.
"""

from __future__ import annotations

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
