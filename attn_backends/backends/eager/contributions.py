"""Weighted sums in which a hidden entry contributes nothing, even where 0 * NaN would not be 0.

    sum_j w_ij x_j   over the j that i sees

The finite part is one matrix product. A NaN or inf in x reaches exactly the rows that see it, by plain arithmetic.
"""

from __future__ import annotations

import torch


def zero_unseen(values: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Keep values [N, J, D], with 0 for every j that no row of visible [N, I, J] sees.

    `weighted_sum` would leave those out as well, but one non-finite key at a time.
    """
    return values.masked_fill(~visible.any(dim=1).unsqueeze(-1), 0.0)


def weighted_sum(weights: torch.Tensor, visible: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """[N, I, J] x [N, J, D] -> [N, I, D]; weights are 0 where visible is False."""
    finite = torch.isfinite(values)
    result = weights @ values.masked_fill(~finite, 0.0)
    for j in (~finite).any(dim=-1).any(dim=0).nonzero().flatten().tolist():
        reached = visible[:, :, j, None] & ~finite[:, None, j, :]
        result = torch.where(reached, result + weights[:, :, j, None] * values[:, None, j, :], result)
    return result
