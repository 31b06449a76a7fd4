"""Operations of attention over a number of (query, key) pairs. A multiply-add counts as two.

Forward, per pair and query head: Q K^T takes 2 D, P V takes 2 Dv, and one exponential. Backward: S again (2 D), dP = dO V^T
(2 Dv), dV = P^T dO (2 Dv), dQ = dS K (2 D), dK = dS^T Q (2 D), and the exponential again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attn_backends.request import Request


def forward_flops(request: Request, pairs: float) -> float:
    """Of the forward pass; pairs are per query head."""
    return 2 * pairs * request.num_q_heads * (request.head_dim_qk + request.head_dim_v)


def backward_flops(request: Request, pairs: float) -> float:
    """Of the backward pass alone, S computed again."""
    return 2 * pairs * request.num_q_heads * (3 * request.head_dim_qk + 2 * request.head_dim_v)


def exponentials(request: Request, pairs: float) -> float:
    """Of either pass."""
    return pairs * request.num_q_heads
