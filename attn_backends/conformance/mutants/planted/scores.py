"""Bugs in scores: scale, softcap, float mask, ALiBi, order of the steps."""

# ruff: noqa: ARG001  # a mutant has the signature of its seam
from __future__ import annotations

import math

import torch

from attn_backends.call import Call
from attn_backends.conformance.controls.places import Place
from attn_backends.conformance.mutants import hiding, scoring, summing
from attn_backends.conformance.mutants.mutant import plant
from attn_backends.conformance.mutants.seams import Task
from attn_backends.conformance.mutants.summing import MINUS_INF, State, shifted

Maybe = torch.Tensor | None


@plant("SCORE-1", "logits", needs=("alibi",))
def added_before_scale(product: torch.Tensor, added: Maybe, seen: torch.Tensor, t: Task) -> torch.Tensor:
    """Bias and ALiBi go into the product and are scaled with it."""
    total = product if added is None else product + added
    return scoring.capped(total * t.call.softmax_scale, t.call).masked_fill(~seen, MINUS_INF)


@plant("SCORE-1", "absorbed")
def accumulator_not_faded(
    state: State, scores: torch.Tensor, powers: torch.Tensor, kept_powers: torch.Tensor, part: torch.Tensor
) -> State:
    """When a later tile raises the maximum, the sum is rescaled and the accumulator is not."""
    acc, total, largest = state
    now = torch.maximum(largest, scores.amax(dim=-1))
    return acc + part, total * torch.exp(largest - shifted(now)) + powers.sum(dim=-1), now


@plant("SCORE-2", "logits")
def scores_clamped(product: torch.Tensor, added: Maybe, seen: torch.Tensor, t: Task) -> torch.Tensor:
    """Scores are clamped to +-88, so that exp cannot overflow."""
    scores = scoring.capped(product * t.call.softmax_scale, t.call)
    scores = scores if added is None else scores + added
    return scores.clamp(-88.0, 88.0).masked_fill(~seen, MINUS_INF)


@plant("SCORE-2", "logits")
def hidden_is_minus_ten_thousand(product: torch.Tensor, added: Maybe, seen: torch.Tensor, t: Task) -> torch.Tensor:
    """Hidden keys score -10000, unless the whole row is hidden; rows that are lower still see them."""
    scores = scoring.logits(product, added, seen, t)
    some = seen.any(dim=-1, keepdim=True)
    return torch.where(some & ~seen, -10000.0, scores)


@plant("SCORE-2", "finished")
def low_rows_are_empty(state: State) -> tuple[torch.Tensor, torch.Tensor]:
    """The maximum of a row starts at -10000 instead of -inf: rows that are lower count as empty."""
    acc, total, largest = state
    return summing.finished((acc, total.masked_fill(largest < -1e4, 0.0), largest))


@plant("SCALE-1", "scale")
def scale_of_padded_width(call: Call) -> float:
    """The default scale is worked out from the width padded to 64."""
    width = call.q.shape[-1]
    padded = -(-width // 64) * 64
    return float(padded**-0.5 if math.isclose(call.softmax_scale, width**-0.5) else call.softmax_scale)


@plant("SCALE-1", "scale")
def scale_of_value_width(call: Call) -> float:
    """The default scale is worked out from v's width."""
    default = math.isclose(call.softmax_scale, call.q.shape[-1] ** -0.5)
    return float(call.v.shape[-1] ** -0.5 if default else call.softmax_scale)


@plant("SCALE-2", "scale", needs=("scale",))
def zero_scale_is_default(call: Call) -> float:
    """`softmax_scale or default`."""
    return float(call.softmax_scale or call.q.shape[-1] ** -0.5)


@plant("SCALE-2", "scale", needs=("scale",))
def given_scale_dropped(call: Call) -> float:
    """1/sqrt(D), whatever was given."""
    return float(call.q.shape[-1] ** -0.5)


@plant("SCALE-2", "scale", needs=("scale",))
def scale_folded_as_square_roots(call: Call) -> float:
    """sqrt(|scale|) goes into q and into k: a negative scale loses its sign."""
    return abs(call.softmax_scale)


@plant("SOFTCAP-1", "logits", needs=("softcap",))
def softcap_before_scale(product: torch.Tensor, added: Maybe, seen: torch.Tensor, t: Task) -> torch.Tensor:
    """The cap is laid on q.k, and the result scaled."""
    scores = scoring.capped(product, t.call) * t.call.softmax_scale
    return (scores if added is None else scores + added).masked_fill(~seen, MINUS_INF)


@plant("SOFTCAP-1", "capped", needs=("softcap",))
def softcap_dropped(scores: torch.Tensor, call: Call) -> torch.Tensor:
    """The argument is accepted and never used."""
    return scores


@plant("SOFTCAP-1", "capped", needs=("softcap",))
def softcap_swapped(scores: torch.Tensor, call: Call) -> torch.Tensor:
    """tanh(s cap) / cap."""
    return scores if call.softcap is None else torch.tanh(scores * call.softcap) / call.softcap


@plant("SOFTCAP-2", "logits", needs=("softcap",))
def softcap_after_mask(product: torch.Tensor, added: Maybe, seen: torch.Tensor, t: Task) -> torch.Tensor:
    """Hidden keys are capped with the others: they weigh exp(-cap) instead of nothing."""
    scores = product * t.call.softmax_scale
    scores = (scores if added is None else scores + added).masked_fill(~seen, MINUS_INF)
    return scoring.capped(scores, t.call)


@plant("SOFTCAP-2", "logits", needs=("softcap", "bias"))
def softcap_after_bias(product: torch.Tensor, added: Maybe, seen: torch.Tensor, t: Task) -> torch.Tensor:
    """The float mask and ALiBi are capped with the score."""
    scores = product * t.call.softmax_scale
    return scoring.capped(scores if added is None else scores + added, t.call).masked_fill(~seen, MINUS_INF)


@plant("BIAS-1", "own_mask", needs=("bias",))
def mask_of_three_dims_is_by_sequence(mask: torch.Tensor, place: Place) -> torch.Tensor:
    """[Hq, Sq, Sk] is taken for [B, Sq, Sk]: dims are counted from the left."""
    by_sequence = mask.dim() == 3 and mask.dtype != torch.bool
    return hiding.own_mask(mask[place.index % len(mask)].unsqueeze(0) if by_sequence else mask, place)


@plant("BIAS-1", "bias", needs=("bias",))
def bias_of_head_zero(own: torch.Tensor, work: torch.dtype) -> torch.Tensor:
    """The heads dim of the float mask is taken to be broadcast."""
    return scoring.bias(own, work)[:1]


@plant("BIAS-1", "bias", needs=("bias",))
def bias_of_first_row(own: torch.Tensor, work: torch.dtype) -> torch.Tensor:
    """The float mask is taken to be one row for all queries."""
    return scoring.bias(own, work)[:, :1]


@plant("BIAS-2", "shown_by_mask", needs=("bias",))
def lowest_number_hides(own: torch.Tensor) -> torch.Tensor:
    """Anything below -1e4 counts as hidden, `finfo.min` too."""
    return own if own.dtype == torch.bool else own > -1e4


@plant("BIAS-2", "shown_by_mask", needs=("bias",))
def minus_inf_hides_nothing(own: torch.Tensor) -> torch.Tensor:
    """-inf in a float mask is forgotten: the key stays visible, at bias 0."""
    return own if own.dtype == torch.bool else torch.ones_like(own, dtype=torch.bool)


@plant("ALIBI-1", "alibi", needs=("alibi",))
def alibi_sign(distance: torch.Tensor, call: Call, place: Place, work: torch.dtype) -> Maybe:
    """+slope |distance|."""
    line = scoring.alibi(distance, call, place, work)
    return None if line is None else -line


@plant("ALIBI-1", "alibi", needs=("alibi",))
def alibi_not_absolute(distance: torch.Tensor, call: Call, place: Place, work: torch.dtype) -> Maybe:
    """slope * distance: right for earlier keys, a bonus for later ones."""
    line = scoring.alibi(distance, call, place, work)
    return None if line is None else torch.where(distance > 0, -line, line)


@plant("ALIBI-1", "alibi", needs=("alibi",))
def alibi_from_the_top_left(distance: torch.Tensor, call: Call, place: Place, work: torch.dtype) -> Maybe:
    """|i - j| without the offset of a prefix."""
    rows, keys = distance.shape
    return scoring.alibi(torch.arange(keys) - torch.arange(rows).unsqueeze(1), call, place, work)


@plant("ALIBI-2", "alibi", needs=("alibi",))
def alibi_by_kv_head(distance: torch.Tensor, call: Call, place: Place, work: torch.dtype) -> Maybe:
    """Every query head of a group takes the slope of the group's first."""
    line = scoring.alibi(distance, call, place, work)
    if line is None:
        return None
    kv_heads = call.k.shape[
        -2 if (call.kv_layout == "NHD" or call.block_table is None) and call.layout != "bhsd" else 1
    ]
    if call.block_table is not None:
        kv_heads = call.k.shape[2 if call.kv_layout == "NHD" else 1]
    group = line.shape[0] // kv_heads
    return line[torch.arange(line.shape[0]) // group * group]


@plant("ALIBI-2", "alibi", needs=("alibi",))
def alibi_of_sequence_zero(distance: torch.Tensor, call: Call, place: Place, work: torch.dtype) -> Maybe:
    """Slopes [B, Hq] are read at sequence 0."""
    if call.alibi_slopes is None:
        return None
    slopes = call.alibi_slopes.reshape(-1, call.alibi_slopes.shape[-1])[0]
    return -slopes.to(work).reshape(-1, 1, 1) * distance.abs().to(work)
