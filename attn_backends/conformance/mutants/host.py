"""The victim: a correct tiled backend with every feature of the contract, made of seams.

    split by split, tile by tile:  m' = max(m, s),  l' = l e^(m - m') + sum e^(s - m'),  o' = o e^(m - m') + e^(s - m') V
    splits and the sink merge:     m' = max(m_a, m_b), the same for l and o
    out = o / l,  lse = m + ln l

The backward recomputes P from the LSE over whole matrices of one sequence. Python, no hurry: a mutant replaces one
function of `Seams`, everything else stays right. Not a backend for users; the suite registers it under a mutant's name.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch

from attn_backends.call import Call, Grads
from attn_backends.conformance.controls.declaring import BOTH, Box, dense, manifest, paged, quantised, quantised_q
from attn_backends.conformance.controls.places import Place, at_keys, at_lse, at_queries
from attn_backends.conformance.mutants.seams import Seams, Task
from attn_backends.conformance.mutants.summing import MINUS_INF, State, shifted


class Victim:
    """A backend out of seams: `run` and `backward` are what a manifest names."""

    def __init__(self, seams: Seams) -> None:
        self.seams = seams

    def run(self, call: Call) -> None:
        """See `Call`."""
        with torch.no_grad():
            self.seams.entered(call)
            for place in self.seams.places(call):
                out, lse = attended(self.task(call, place))
                self.seams.stored(call, place, out, lse)
            self.seams.left(call)

    def backward(self, call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
        """See `Call`."""
        with torch.no_grad():
            return self._backward(call, d_out, d_lse)

    def _backward(self, call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
        grads = Grads(
            **{name: torch.zeros_like(getattr(call, name), memory_format=torch.contiguous_format) for name in "qkv"}
        )
        work = self.seams.work_dtype(call)
        bias = (
            None
            if not call.grad_bias or call.attn_mask is None
            else call.attn_mask.new_zeros(call.attn_mask.shape, dtype=work)
        )
        sinks = torch.zeros(1 if call.sinks is None else len(call.sinks), dtype=work)
        upstream = self.seams.strided(d_out, "d_out", call)
        for place in self.seams.places(call):
            rows = self.seams.rows_of(upstream, "d_out", call, place).to(work).contiguous()
            lse = None if d_lse is None else at_lse(d_lse, place).to(work)
            one = gradients(self.task(call, place, backward=True), rows, lse)
            at_queries(grads.q, call, place).copy_(one.q)
            at_keys(grads.k, call, place).copy_(one.k)
            at_keys(grads.v, call, place).copy_(one.v)
            sinks = sinks + one.sinks
            if bias is not None:
                self.seams.into_mask(self.seams.own_mask(bias, place), one.scores)
        if bias is not None and call.attn_mask is not None:
            grads.bias = bias.to(call.attn_mask.dtype)
        grads.sinks = sinks.to(torch.float32) if call.grad_sinks else None
        return grads

    def task(self, call: Call, place: Place, *, backward: bool = False) -> Task:
        """Read one sequence."""
        s = self.seams
        work = s.work_dtype(call)
        stored = {name: s.rows_of(s.strided(getattr(call, name), name, call), name, call, place) for name in "qkv"}
        q, k, v = (
            s.logical(s.values_of(rows, s.scale_of(name, call, place, rows.shape[0]), work), name, call)
            for name, rows in stored.items()
        )
        heads, kv_heads = q.shape[0], k.shape[0]
        own = s.kv_head(heads, kv_heads)
        position = torch.arange(q.shape[1]).unsqueeze(1) + s.diagonal(call, place)
        distance = torch.arange(k.shape[1]) - position
        seen = self._seen(call, place, distance).expand(heads, *distance.shape)
        return Task(
            seams=s, call=call, place=place, kv_heads=kv_heads, own=own, q=q, k=k[own], v=v[own], seen=seen,
            added=self._added(call, place, distance, heads), keep=s.keep(call, place, heads, backward),
        )  # fmt: skip

    def _seen(self, call: Call, place: Place, distance: torch.Tensor) -> torch.Tensor:
        s = self.seams
        everything = torch.ones_like(distance, dtype=torch.bool).unsqueeze(0)
        parts = [s.shown_by_causal(distance, call, place), s.shown_by_window(distance, call, place)]
        if call.attn_mask is not None:
            parts.append(s.shown_by_mask(s.own_mask(call.attn_mask, place)))
        parts.append(s.shown_by_blocks(call, place))
        seen: torch.Tensor = s.composed([everything, *(part for part in parts if part is not None)])
        return seen

    def _added(self, call: Call, place: Place, distance: torch.Tensor, heads: int) -> torch.Tensor | None:
        s = self.seams
        work = s.work_dtype(call)
        line = s.alibi(distance, call, place, work)
        if call.attn_mask is not None and call.attn_mask.dtype != torch.bool:
            bias = s.bias(s.own_mask(call.attn_mask, place), work)
            line = bias if line is None else line + bias
        return None if line is None else line.expand(heads, *distance.shape)


def attended(t: Task) -> tuple[torch.Tensor, torch.Tensor]:
    """out [Hq, Sq, Dv] and lse [Hq, Sq] of one sequence."""
    s = t.seams
    states = [_split(t, start, stop) for start, stop in s.splits(t.call, t.k.shape[1])] or [_nothing(t)]
    state = s.with_sink(reduce(s.merged, states), s.sinks(t.call, t.q.shape[0], t.q.dtype))
    out, lse = s.finished(state)
    return s.rescaled(out, t.call), lse


def _nothing(t: Task) -> State:
    rows = t.q.new_zeros(t.q.shape[:2])
    return t.q.new_zeros((*t.q.shape[:2], t.v.shape[2])), rows, torch.full_like(rows, MINUS_INF)


def _split(t: Task, start: int, stop: int) -> State:
    s, state = t.seams, _nothing(t)
    for keys in s.tiles(start, stop):
        seen = t.seen[..., keys]
        added = None if t.added is None else t.added[..., keys]
        scores = s.logits(t.q @ t.k[:, keys].transpose(1, 2), added, seen, t)
        powers = torch.exp(scores - shifted(torch.maximum(state[2], scores.amax(dim=-1))).unsqueeze(-1))
        kept = powers if t.keep is None else powers * t.keep[..., keys]
        state = s.absorbed(state, scores, powers, kept, s.weighted(kept, seen, t.v[:, keys]))
    return state


class TaskGrads(NamedTuple):
    """q [Hq, Sq, D], k [Hkv, Sk, D], v [Hkv, Sk, Dv], scores [Hq, Sq, Sk], sinks [Hq]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scores: torch.Tensor
    sinks: torch.Tensor


def gradients(t: Task, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> TaskGrads:
    """d_out [Hq, Sq, Dv], d_lse [Hq, Sq] or None."""
    s, call = t.seams, t.call
    out, lse = attended(t)
    product = t.q @ t.k.transpose(1, 2)
    weights = torch.exp(s.logits(product, t.added, t.seen, t) - shifted(lse).unsqueeze(-1))
    d_weights = _dropped(t, d_out @ t.v.transpose(1, 2)).masked_fill(~t.seen, 0.0)
    row = s.row_term(s.delta(weights, d_weights, out, d_out), d_lse)
    d_scores = s.d_scores(weights, d_weights, row).masked_fill(~t.seen, 0.0)
    flow = (d_scores * s.cap_slope(product * s.scale(call), call)).masked_fill(~t.seen, 0.0)
    to_k, to_v = s.d_key(flow, s.scale(call)), _dropped(t, weights).transpose(1, 2)
    sink = torch.exp(s.sinks(call, t.q.shape[0], t.q.dtype).unsqueeze(1) - shifted(lse))
    return TaskGrads(
        q=s.weighted(s.d_query(flow, s.scale(call)), t.seen, t.k),
        k=s.by_kv_head(_over_rows(t, to_k, t.q), t.own, t.kv_heads),
        v=s.by_kv_head(_over_rows(t, to_v, d_out), t.own, t.kv_heads),
        scores=d_scores,
        sinks=s.d_sinks(sink, row),
    )


def _over_rows(t: Task, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """weights [Hq, Sk, Sq] times values [Hq, Sq, W], summed over the parts of the rows one after the other."""
    seen = t.seen.transpose(1, 2)
    total = values.new_zeros((weights.shape[0], weights.shape[1], values.shape[2]))
    for rows in t.seams.over_rows(weights):
        total = total + t.seams.weighted(weights[..., rows], seen[..., rows], values[:, rows])
    return total


def _dropped(t: Task, weights: torch.Tensor) -> torch.Tensor:
    """Weights, or their gradient, behind dropout."""
    dropped: torch.Tensor = weights if t.keep is None else t.seams.rescaled(weights * t.keep, t.call)
    return dropped


def boxes() -> list[Box]:
    """What the victim declares: everything that a backend on a CPU can."""
    more = {"nan_safe": BOTH, "compile": BOTH}
    return [dense(**more), quantised(**more), quantised_q(**more), paged(**more)]


def declared(name: str) -> Box:
    """The victim's manifest under another name; its functions are given at registration."""
    found = manifest(name, *boxes())
    return {**{key: value for key, value in found.items() if key not in ("kernel", "backward")}, "name": name}
