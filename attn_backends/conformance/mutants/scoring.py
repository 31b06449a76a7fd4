"""Seams of scores: scale, softcap, bias, ALiBi, and the order that they come in. Defaults of `Seams`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attn_backends.call import Call
from attn_backends.conformance.controls.places import Place

if TYPE_CHECKING:
    from attn_backends.conformance.mutants.seams import Task

MINUS_INF = float("-inf")


def scale(call: Call) -> float:
    """What multiplies q.k."""
    return call.softmax_scale


def capped(scores: torch.Tensor, call: Call) -> torch.Tensor:
    """The softcap on scaled scores."""
    return scores if call.softcap is None else call.softcap * torch.tanh(scores / call.softcap)


def bias(own: torch.Tensor, work: torch.dtype) -> torch.Tensor:
    """What a float mask's part adds, 0 where it hides."""
    return own.to(work).masked_fill(own == MINUS_INF, 0.0)


def alibi(distance: torch.Tensor, call: Call, place: Place, work: torch.dtype) -> torch.Tensor | None:
    """[Hq, seq_q, seq_k] or None."""
    if call.alibi_slopes is None:
        return None
    slopes = call.alibi_slopes if call.alibi_slopes.dim() == 1 else call.alibi_slopes[place.index]
    return -slopes.to(work).reshape(-1, 1, 1) * distance.abs().to(work)


def logits(product: torch.Tensor, added: torch.Tensor | None, seen: torch.Tensor, t: Task) -> torch.Tensor:
    """From q.k [Hq, rows, keys] to what stands in the exponent; -inf where hidden."""
    scores = t.seams.capped(product * t.seams.scale(t.call), t.call)
    if added is not None:
        scores = scores + added
    hidden: torch.Tensor = scores.masked_fill(~seen, MINUS_INF)
    return hidden
