"""Seams of the softmax: tiles, splits, the running state, merging, the sink, the end. Defaults of `Seams`.

A `State` is (acc [Hq, Sq, Dv], total [Hq, Sq], largest [Hq, Sq]): out = acc / total, lse = largest + ln(total).
"""

# ruff: noqa: ARG001  # a seam takes what the host has; its mutants need it
from __future__ import annotations

import torch

from attn_backends.call import Call
from attn_backends.conformance.controls.keeping import kept
from attn_backends.conformance.controls.places import Place

MINUS_INF = float("-inf")

State = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

SPLIT = 96  # keys per split; a constant, so that a row never depends on its batch
TILE = 32


def splits(call: Call, seq_k: int) -> list[tuple[int, int]]:
    """[start, stop) of every split of the keys."""
    return [(start, min(start + SPLIT, seq_k)) for start in range(0, seq_k, SPLIT)]


def tiles(start: int, stop: int) -> list[slice]:
    """The tiles of one split."""
    return [slice(first, min(first + TILE, stop)) for first in range(start, stop, TILE)]


def shifted(largest: torch.Tensor) -> torch.Tensor:
    """What is taken off before exp: the maximum, 0 where there is none."""
    return largest.masked_fill(largest == MINUS_INF, 0.0)


def absorbed(
    state: State, scores: torch.Tensor, powers: torch.Tensor, kept_powers: torch.Tensor, part: torch.Tensor
) -> State:
    """The state after one tile: its scores, their powers exp(s - m') before and after dropout, and the latter's part of P.V."""
    acc, total, largest = state
    now = torch.maximum(largest, scores.amax(dim=-1))
    faded = torch.exp(largest - shifted(now))
    return acc * faded.unsqueeze(-1) + part, total * faded + powers.sum(dim=-1), now


def merged(a: State, b: State) -> State:
    """The state of two splits."""
    largest = torch.maximum(a[2], b[2])
    weight_a, weight_b = (torch.exp(state[2] - shifted(largest)) for state in (a, b))
    acc = a[0] * weight_a.unsqueeze(-1) + b[0] * weight_b.unsqueeze(-1)
    return acc, a[1] * weight_a + b[1] * weight_b, largest


def sinks(call: Call, heads: int, work: torch.dtype) -> torch.Tensor:
    """[Hq]; -inf is no sink."""
    return torch.full((heads,), MINUS_INF, dtype=work) if call.sinks is None else call.sinks.to(work)


def with_sink(state: State, sink: torch.Tensor) -> State:
    """The state after the sink joined: a weight without a value."""
    zero, rows = torch.zeros_like(state[0]), sink.unsqueeze(1).expand_as(state[1])
    return merged(state, (zero, (rows != MINUS_INF).to(zero.dtype), rows))


def finished(state: State) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse; 0 and -inf for a row that saw nothing."""
    acc, total, largest = state
    empty = total == 0.0
    out = acc / total.masked_fill(empty, 1.0).unsqueeze(-1)
    return out, torch.where(empty, MINUS_INF, largest + torch.log(total))


def weighted(weights: torch.Tensor, seen: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """sum_j w_ij x_j over what i sees, [H, I, J] x [H, J, W]; a NaN in x reaches the rows that see it and no other."""
    finite = values.isfinite()
    total = weights @ values.masked_fill(~finite, 0.0)
    odd = (~finite).any(dim=-1).any(dim=0).nonzero().flatten()
    if len(odd):
        terms = weights[:, :, odd, None] * values.masked_fill(finite, 0.0)[:, None, odd]
        total = total + terms.masked_fill(~seen[:, :, odd, None], 0.0).sum(dim=2)
    return total


def keep(call: Call, place: Place, heads: int, backward: bool) -> torch.Tensor | None:
    """Bool [Hq, seq_q, seq_k], or None without dropout."""
    if call.dropout_p == 0.0:
        return None
    return kept(call.dropout_p, call.dropout_seed, place.index, heads, place.seq_q, place.seq_k)


def rescaled(values: torch.Tensor, call: Call) -> torch.Tensor:
    """What the kept weights are multiplied by."""
    return values / (1.0 - call.dropout_p) if call.dropout_p else values
