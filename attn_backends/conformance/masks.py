"""Masks, sinks and slopes of a case. Every mask of more than one row has a row that sees nothing, where it may."""

from __future__ import annotations

import torch

from attn_backends.conformance.case import Case

VISIBLE = 0.7  # share of visible entries
MINUS_INF = float("-inf")


def drawn_mask(case: Case, generator: torch.Generator) -> torch.Tensor | None:
    """Bool (True = visible) or float64 (added, -inf hides) of the case's number of dims; None without one."""
    if case.mask == "none":
        return None
    shape = _mask_shape(case)
    seen = torch.rand(shape, generator=generator, dtype=torch.float64) < VISIBLE
    _empty_one_row(seen, case)
    if case.mask == "bool":
        return seen
    return torch.randn(shape, generator=generator, dtype=torch.float64).masked_fill(~seen, MINUS_INF)


def _mask_shape(case: Case) -> tuple[int, ...]:
    """[Sq, Sk], [Hq, Sq, Sk] or [B, Hq, Sq, Sk]; at odd seeds [1, Sk], [1, Sq, Sk] or [B, 1, Sq, Sk]."""
    full = [case.batch, case.q_heads, case.seq_q, case.seq_k]
    if case.seed % 2:
        full[2 if case.mask_dims == 2 else 1] = 1
    return tuple(full[4 - case.mask_dims :])


def _empty_one_row(seen: torch.Tensor, case: Case) -> None:
    """Hide everything from one row; with a single one, from one sequence or head, if there are several."""
    if seen.shape[-2] > 1:
        seen[..., case.seq_q // 2, :] = False
    elif seen.dim() > 2 and seen.shape[0] > 1:
        seen[0] = False


def drawn_blocks(case: Case, generator: torch.Generator) -> torch.Tensor | None:
    """Bool blocks [B, Hq, rows, columns], shared by all sequences at odd seeds; the last row of blocks is empty."""
    if case.block_mask is None:
        return None
    rows, columns = -(-case.seq_q // case.block_mask), -(-case.seq_k // case.block_keys)
    batch = 1 if case.seed % 2 else case.batch
    seen = torch.rand((batch, case.q_heads, rows, columns), generator=generator) < VISIBLE
    if rows > 1:
        seen[:, :, -1] = False
    return seen


def drawn_inside(case: Case, generator: torch.Generator) -> torch.Tensor | None:
    """The token mask of a block mask, bool [Sq, Sk]; only odd seeds have one."""
    if case.block_mask is None or case.seed % 2 == 0:
        return None
    return torch.rand((case.seq_q, case.seq_k), generator=generator) < VISIBLE


def drawn_sinks(case: Case, generator: torch.Generator) -> torch.Tensor | None:
    """Float32 [Hq], the last -inf (no sink) where there are several heads."""
    if not case.sinks:
        return None
    sinks = torch.randn(case.q_heads, generator=generator, dtype=torch.float32)
    if case.q_heads > 1:
        sinks[-1] = MINUS_INF
    return sinks


def drawn_slopes(case: Case) -> torch.Tensor | None:
    """Float32 [Hq], or [B, Hq] at odd seeds: powers of two that fall with the head."""
    if not case.alibi:
        return None
    slopes = torch.tensor([2.0 ** (-4.0 * (head + 1) / case.q_heads) for head in range(case.q_heads)])
    if case.seed % 2 == 0:
        return slopes
    return torch.stack([slopes * (1.0 + 0.5 * sequence) for sequence in range(case.batch)])
