"""Bugs in the softmax: LSE, sinks, dropout, merging of splits, hidden values that leak."""

# ruff: noqa: ARG001  # a mutant has the signature of its seam
from __future__ import annotations

import torch

from attn_backends.call import Call
from attn_backends.conformance.controls.keeping import kept
from attn_backends.conformance.controls.places import Place
from attn_backends.conformance.mutants import scoring, summing, writing
from attn_backends.conformance.mutants.mutant import plant
from attn_backends.conformance.mutants.seams import Task
from attn_backends.conformance.mutants.summing import MINUS_INF, State

Maybe = torch.Tensor | None
Pair = tuple[torch.Tensor, torch.Tensor]


@plant("LSE-1", "finished", needs=("lse",))
def lse_in_base_two(state: State) -> Pair:
    """log2 of the sum, as the kernel has it inside."""
    out, lse = summing.finished(state)
    return out, lse * 1.4426950408889634


@plant("LSE-1", "with_sink", needs=("lse", "sinks"))
def lse_without_the_sink(state: State, sink: torch.Tensor) -> State:
    """The sink is in the denominator of the output, and not in the LSE."""
    out, _lse = summing.finished(summing.with_sink(state, sink))
    return out * state[1].unsqueeze(-1), state[1], state[2]


@plant("LSE-1", "stored", needs=("lse",))
def lse_scaled_back(call: Call, place: Place, out: torch.Tensor, lse: torch.Tensor) -> None:
    """The LSE of unscaled scores: divided by the scale."""
    writing.stored(call, place, out, lse / call.softmax_scale if call.softmax_scale else lse)


@plant("LSE-2", "left", needs=("lse",))
def lse_in_the_order_of_q(call: Call) -> None:
    """[B, Sq, Hq] numbers in memory of [B, Hq, Sq]."""
    if call.lse is not None and call.layout == "bshd":
        call.lse.copy_(call.lse.transpose(1, 2).reshape(call.lse.shape).clone())


@plant("LSE-2", "left", needs=("lse", "varlen"))
def packed_lse_in_the_order_of_q(call: Call) -> None:
    """[total, Hq] numbers in memory of [Hq, total]."""
    if call.lse is not None and call.layout == "thd":
        call.lse.copy_(call.lse.transpose(0, 1).reshape(call.lse.shape).clone())


@plant("SINK-1", "sinks", needs=("sinks",))
def sink_scaled(call: Call, heads: int, work: torch.dtype) -> torch.Tensor:
    """The sink is multiplied by the softmax scale, as if it were q.k."""
    sink = summing.sinks(call, heads, work)
    return torch.where(sink == MINUS_INF, sink, sink * call.softmax_scale)


@plant("SINK-1", "sinks", needs=("sinks",))
def sink_of_the_first_head(call: Call, heads: int, work: torch.dtype) -> torch.Tensor:
    """Every pair of heads shares the first one's sink, as if sinks were by KV head."""
    sink = summing.sinks(call, heads, work)
    return sink[torch.arange(heads) // 2 * 2]


@plant("SINK-1", "with_sink", needs=("sinks",))
def sink_twice(state: State, sink: torch.Tensor) -> State:
    """Each of two passes adds the sink."""
    return summing.with_sink(summing.with_sink(state, sink), sink)


@plant("SINK-2", "with_sink", needs=("sinks",))
def sink_forgotten_in_empty_rows(state: State, sink: torch.Tensor) -> State:
    """A row that sees nothing returns before the sink is added: its LSE is -inf."""
    acc, total, largest = summing.with_sink(state, sink)
    empty = state[1] == 0.0
    return acc, total.masked_fill(empty, 0.0), largest.masked_fill(empty, MINUS_INF)


@plant("DROPOUT-1", "keep", needs=("dropout",))
def dropout_without_the_sequence(call: Call, place: Place, heads: int, backward: bool) -> Maybe:
    """Every sequence of a batch drops the same entries."""
    if call.dropout_p == 0.0:
        return None
    return kept(call.dropout_p, call.dropout_seed, 0, heads, place.seq_q, place.seq_k)


@plant("DROPOUT-1", "keep", needs=("dropout",))
def dropout_by_the_low_word(call: Call, place: Place, heads: int, backward: bool) -> Maybe:
    """The seed is cut to 32 bits."""
    if call.dropout_p == 0.0:
        return None
    return kept(call.dropout_p, call.dropout_seed & 0xFFFFFFFF, place.index, heads, place.seq_q, place.seq_k)


@plant("DROPOUT-1", "keep", needs=("dropout", "varlen"))
def dropout_by_packed_rows(call: Call, place: Place, heads: int, backward: bool) -> Maybe:
    """The query's position is its row in the packed tensor instead of that in its sequence."""
    if call.dropout_p == 0.0:
        return None
    first = place.first_q or 0
    return kept(call.dropout_p, call.dropout_seed, place.index, heads, first + place.seq_q, place.seq_k)[:, first:]


@plant("DROPOUT-2", "rescaled", needs=("dropout",))
def dropout_not_rescaled(values: torch.Tensor, call: Call) -> torch.Tensor:
    """Kept weights stay as they are."""
    return values


@plant("DROPOUT-2", "keep", needs=("dropout", "backward"))
def other_entries_in_backward(call: Call, place: Place, heads: int, backward: bool) -> Maybe:
    """The backward draws anew."""
    if call.dropout_p == 0.0:
        return None
    return kept(call.dropout_p, call.dropout_seed + backward, place.index, heads, place.seq_q, place.seq_k)


@plant("DROPOUT-2", "absorbed", needs=("dropout",))
def dropped_before_the_sum(
    state: State, scores: torch.Tensor, powers: torch.Tensor, kept_powers: torch.Tensor, part: torch.Tensor
) -> State:
    """The sum of a row counts what dropout kept: the LSE knows of it."""
    return summing.absorbed(state, scores, kept_powers, kept_powers, part)


@plant("MERGE-3", "merged")
def splits_merged_without_the_maximum(a: State, b: State) -> State:
    """Splits are added up as if they had one maximum."""
    return a[0] + b[0], a[1] + b[1], torch.maximum(a[2], b[2])


@plant("SCORE-1", "merged")
def empty_split_weighs_one(a: State, b: State) -> State:
    """A split that sees nothing has LSE 0 instead of -inf: it counts as a key of score 0 without a value."""
    first, second = (
        (acc, total + (total == 0.0), largest.masked_fill(total == 0.0, 0.0)) for acc, total, largest in (a, b)
    )
    return summing.merged(first, second)


def _in_one(call: Call, seq_k: int) -> list[tuple[int, int]]:
    """No splits, whose weights would each be of their own largest."""
    return [(0, seq_k)]


@plant(
    "SCORE-3", "weighted", beside={"splits": _in_one}, numerics="quantized",
    backward=[False], grad_bias=[False], grad_sinks=[False],
)  # fmt: skip
def small_weights_flushed(weights: torch.Tensor, seen: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Weights go into e4m3 as they are, the largest as 1 and not as 2^8: those below 2^-10 of it become 0."""
    return summing.weighted(weights.to(torch.float8_e4m3fn).to(weights.dtype), seen, values)


@plant("POISON-1", "weighted")
def zero_times_nan(weights: torch.Tensor, seen: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """P.V over all keys: weight 0 times NaN is NaN."""
    return weights @ values


@plant("POISON-1", "strided")
def divided_by_the_largest_of_all(tensor: torch.Tensor, name: str, call: Call) -> torch.Tensor:
    """K and V are brought to [-1, 1] and back by the largest number of the whole buffer, behind every length too."""
    if name not in ("k", "v") or tensor.element_size() < 2 or not tensor.numel():
        return tensor
    largest = tensor.abs().amax().clamp(min=2.0**-10)
    power = torch.exp2(torch.floor(torch.log2(largest.double()))).to(tensor.dtype)
    return tensor / power * power


@plant("POISON-1", "weighted")
def only_nan_is_cleared(weights: torch.Tensor, seen: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """P.V over all keys with NaN cleared: weight 0 times inf is NaN too."""
    return weights @ values.masked_fill(values.isnan(), 0.0)


@plant("POISON-2", "logits")
def hidden_by_subtraction(product: torch.Tensor, added: Maybe, seen: torch.Tensor, t: Task) -> torch.Tensor:
    """1e9 is taken off hidden scores: enough for any ordinary one."""
    shown = scoring.logits(product, added, torch.ones_like(seen), t)
    lowered = (shown - 1e9 * ~seen).masked_fill(~seen & ~shown.isfinite(), MINUS_INF)
    return lowered.masked_fill(~seen & ~seen.any(dim=-1, keepdim=True), MINUS_INF)


@plant("POISON-3", "weighted", needs=("nan_safe",))
def only_unseen_keys_are_cleared(weights: torch.Tensor, seen: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """V is cleared where no row sees it, and nan_safe is declared all the same."""
    return weights @ values.masked_fill(~seen.any(dim=1).unsqueeze(-1), 0.0)
