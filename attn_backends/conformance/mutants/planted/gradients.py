"""Bugs in the backward."""

# ruff: noqa: ARG001  # a mutant has the signature of its seam
from __future__ import annotations

import torch

from attn_backends.call import Call
from attn_backends.conformance.mutants import flowing
from attn_backends.conformance.mutants.mutant import plant

Maybe = torch.Tensor | None


@plant("BACKWARD-1", "cap_slope", needs=("backward", "softcap"))
def softcap_without_a_slope(scores: torch.Tensor, call: Call) -> torch.Tensor:
    """The derivative of the softcap is forgotten."""
    return torch.ones_like(scores)


@plant("BACKWARD-1", "d_query", needs=("backward",))
def dq_without_scale(flow: torch.Tensor, scale: float) -> torch.Tensor:
    """dQ = dS K."""
    return flow


@plant("BACKWARD-1", "by_kv_head", needs=("backward", "gqa_ratio"))
def dkv_of_the_last_head_of_a_group(grads: torch.Tensor, own: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Query heads of a group write dK and dV over each other instead of adding."""
    return grads.reshape(kv_heads, -1, *grads.shape[1:])[:, -1]


@plant("BACKWARD-2", "d_query", needs=("backward",))
def dq_of_empty_rows_is_nan(flow: torch.Tensor, scale: float) -> torch.Tensor:
    """Rows are divided by a sum that is 0 where nothing is seen, and multiplied by it after."""
    total = flow.abs().sum(dim=-1, keepdim=True)
    return flow * scale * (total / total)


@plant("BACKWARD-2", "d_key", needs=("backward",))
def dk_of_unseen_keys_is_nan(flow: torch.Tensor, scale: float) -> torch.Tensor:
    """Keys are normalised by a sum that is 0 where nobody looks: NaN."""
    by_key = flowing.d_key(flow, scale)
    return torch.where((by_key == 0.0).all(dim=-1, keepdim=True), torch.nan, by_key)


@plant("BACKWARD-3", "row_term", needs=("backward", "lse"))
def d_lse_ignored(taken: torch.Tensor, d_lse: Maybe) -> torch.Tensor:
    """The LSE is taken for a constant."""
    return -taken


@plant("BACKWARD-3", "row_term", needs=("backward", "lse"))
def d_lse_with_the_sign_of_delta(taken: torch.Tensor, d_lse: Maybe) -> torch.Tensor:
    """-delta - d_lse."""
    return -taken if d_lse is None else -taken - d_lse


@plant("BACKWARD-4", "into_mask", needs=("grad_bias",))
def mask_gradient_of_one_entry(total: torch.Tensor, scores: torch.Tensor) -> None:
    """Where the mask broadcasts, the gradient of the first head (or row) is taken instead of the sum."""
    total += scores[tuple(slice(0, size) for size in total.shape)]


@plant("BACKWARD-4", "into_mask", needs=("grad_bias",))
def mask_gradient_of_the_last_sequence(total: torch.Tensor, scores: torch.Tensor) -> None:
    """A mask shared by the batch keeps what the last sequence wrote."""
    total.copy_(scores.sum_to_size(total.shape))


@plant("BACKWARD-5", "d_sinks", needs=("grad_sinks",))
def sink_gradient_without_empty_rows(weight: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Rows that see nothing are skipped, where the sink has all the weight and the LSE is the sink's."""
    return flowing.d_sinks(weight.masked_fill(weight == 1.0, 0.0), row)


@plant("BACKWARD-5", "d_sinks", needs=("grad_sinks",))
def sink_gradient_with_its_sign_turned(weight: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """weight (delta - d_lse)."""
    return -flowing.d_sinks(weight, row)
