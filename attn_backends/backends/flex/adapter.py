"""torch's flex_attention, compiled: the features that plain SDPA lacks, softcap, ALiBi and windows, on CUDA.

The band of the call becomes a `BlockMask`, everything else a score_mod; gradients, through the LSE too, are autograd's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from attn_backends.backends.flex.band_mask import band_arguments, block_mask_of
from attn_backends.backends.flex.compiled import run_compiled
from attn_backends.backends.torch_sdpa import deliver
from attn_backends.backends.torch_sdpa.conversions import Conversion, conversions_of
from attn_backends.backends.torch_sdpa.problem import Needs, Problem, prepare

if TYPE_CHECKING:
    from attn_backends.call import Call, Grads

NEEDS = Needs(diagonals=("any",), window="two_sided", masks=False, width_multiple=16, vectors=True, signed_scale=True)
Graph = tuple[tuple[torch.Tensor, ...], torch.Tensor, torch.Tensor]  # leaves, out, lse


@dataclass(slots=True, kw_only=True)
class Kept:
    """`Call.saved`: the forward's graph from leaves to results, for one backward; a second one runs the forward again."""

    problem: Problem
    graph: Graph | None = None


def run(call: Call) -> None:
    """Write `call.out` and, where asked, `call.lse`."""
    problem = prepare(call, NEEDS)
    kept = Kept(problem=problem)
    if problem.band.blank:
        deliver.deliver_blank(call)
    else:
        _leaves, out, lse = graph = _attend(call, problem)
        deliver.deliver(call, problem, out.detach(), lse.detach())
        kept.graph = graph
    if call.needs_backward:
        call.saved = kept


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """Gradients of q, k, v, through out and, where given, the LSE."""
    kept: Kept = call.saved
    problem = kept.problem
    if problem.band.blank:
        return deliver.blank_grads(call)
    leaves, out, lse = kept.graph or _attend(call, problem)
    kept.graph = None
    results, sources = [out], [deliver.output_gradient(call, problem, d_out, NEEDS)]
    if d_lse is not None:
        results.append(lse)
        sources.append(d_lse[:, :, problem.band.first_row : problem.band.end_row].to(lse.dtype).contiguous())
    q, k, v = torch.autograd.grad(results, leaves, sources)
    return deliver.deliver_grads(call, problem, q, k, v)


def conversions(call: Call) -> list[Conversion]:
    """What `run` is going to convert, with its bytes."""
    return conversions_of(call, NEEDS)


def _attend(call: Call, problem: Problem) -> Graph:
    """(q, k, v), out, lse: a graph between them where the call needs gradients."""
    band, device = problem.band, str(problem.q.device)
    heads = problem.q.shape[1]
    slopes = None if call.alibi_slopes is None else call.alibi_slopes.view(-1, heads).expand(problem.q.shape[0], -1)
    block_mask = block_mask_of(*band_arguments(band, problem.q.device)) if problem.diagonal == "any" else None
    cap = _cap(call)
    numbers = _floats(device, call.softmax_scale, cap or 1.0)
    with torch.set_grad_enabled(call.needs_backward):
        leaves = tuple(t.detach().requires_grad_(call.needs_backward) for t in (problem.q, problem.k, problem.v))
        features = _features(call, problem, block_mask is not None)
        arguments = block_mask, numbers, slopes, _integers(device, band.offset), cap is not None
        out, lse = run_compiled(features, *leaves, *arguments)
    return leaves, out, lse


def _features(call: Call, problem: Problem, banded: bool) -> tuple[Any, ...]:
    """What makes other code: features, dtype, heads and widths."""
    q, k, v = problem.q, problem.k, problem.v
    asked = _cap(call) is not None, call.alibi_slopes is not None, banded, call.needs_backward
    return *asked, str(q.dtype)[6:], q.shape[1], k.shape[1], q.shape[3], v.shape[3]


def _cap(call: Call) -> float | None:
    """The softcap as a float32: none where it is larger than any, the least one where it would be 0."""
    limits = torch.finfo(torch.float32)
    return None if call.softcap is None or call.softcap > limits.max else max(call.softcap, limits.tiny)


@lru_cache(maxsize=256)
def _floats(device: str, *numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32, device=device)


@lru_cache(maxsize=256)
def _integers(device: str, *numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)
