"""Exact rigs: inputs whose output says by itself what was seen, so that no tolerance is needed.

visible   q = 0, v_j = one-hot of j mod Dv     out * n = how many seen keys fall in each class, n = exp(lse)
lowest    the same under a float mask: the lowest finite number on every other row, 0 elsewhere, -inf as drawn
onehot    scores 0 but for one key             out = that key's v, to the last bit (as near as a quantiser leaves it)
ones      v = 1                                out = 1 in rows that see something, 0 elsewhere
tail      v = 1, one key's weight 2^11 times that of each of many others    the same
"""

from __future__ import annotations

import math

import torch

from attn_backends.conformance.case import Case
from attn_backends.conformance.case_request import needs_backward
from attn_backends.conformance.checks.calling import Answer, attend
from attn_backends.conformance.checks.check import Check, Context, Finding
from attn_backends.conformance.checks.seen import logical_lse, logical_out, rows_of, seen_keys
from attn_backends.conformance.clause_map import FEW, shown_by
from attn_backends.conformance.drawing import Logical, draw
from attn_backends.conformance.inputs import bias_dtype, store, stored
from attn_backends.conformance.yardstick import coarseness

GAP = 200.0  # in score: exp(-200) is nothing beside 1
TAIL = 11.0 * math.log(2.0)  # in score: e4m3, whose largest weight is 1, holds no 2^-11 beside it


def _plain(case: Case) -> bool:
    """Nothing is added to scores or taken from weights, and V holds numbers."""
    return case.mask != "bias" and _plain_but_for_bias(case)


def _plain_but_for_bias(case: Case) -> bool:
    added = case.alibi or case.sinks or case.dropout > 0
    return not added and case.v_format == "dense" and case.q_format == "dense" and not needs_backward(case)


def visible(context: Context, case: Case) -> Finding:
    """With all weights alike, each row counts the keys that it sees."""
    return _counted(context, draw(case))


def lowest(context: Context, case: Case) -> Finding:
    """A row whose visible keys all have the lowest finite number added still sees them, each as much as the others."""
    drawn = draw(case)
    assert drawn.mask is not None
    added = torch.zeros_like(drawn.mask)
    added[..., ::2, :] = torch.finfo(bias_dtype(case)).min
    return _counted(context, drawn.replace(mask=added.masked_fill(drawn.mask == float("-inf"), float("-inf"))))


def _counted(context: Context, logical: Logical) -> Finding:
    """`visible` on these numbers; the LSE is left to the oracle where a float mask moves it."""
    case = logical.case
    classes = torch.arange(case.seq_k) % case.head_dim_v
    one_hot = torch.nn.functional.one_hot(classes, case.head_dim_v).to(torch.float64)
    logical = logical.replace(q=torch.zeros_like(logical.q), v=one_hot[None, :, None].expand(logical.v.shape))
    answer = attend(context, store(logical, context.device))
    seen = seen_keys(logical)
    expected = (seen.to(torch.float64) @ one_hot).transpose(1, 2)  # [B, Sq, Hq, Dv] keys per class
    count = seen.sum(dim=-1).transpose(1, 2)
    got = logical_out(answer.out, logical).to(torch.float64) * count.unsqueeze(-1)
    wrong = ~((got - expected).abs() < 0.25)  # counts are whole: nearer to another one is wrong
    if bool(wrong.any()):
        at = tuple(int(index) for index in wrong.nonzero()[0])
        sequence, row, head, column = at
        text = f"row {row} of sequence {sequence}, head {head}: sees {float(got[at]):.3g} keys of class {column}"
        return Finding(ok=False, message=f"{text}, should see {int(expected[at])} (of {int(count[at[:3]])} in all)")
    return Finding(ok=True) if case.mask == "bias" else _counts_agree(answer, logical, count)


def _counts_agree(answer: Answer, logical: Logical, count: torch.Tensor) -> Finding:
    """exp(lse) is the number of keys."""
    if answer.lse is None:
        return Finding(ok=True)
    got = torch.exp(logical_lse(answer.lse, logical).to(torch.float64))
    wrong = ~((got - count).abs() <= 0.01 * count) & rows_of(logical).unsqueeze(-1)
    if not bool(wrong.any()):
        return Finding(ok=True)
    sequence, row, head = (int(index) for index in wrong.nonzero()[0])
    text = f"exp(lse) is {float(got[sequence, row, head]):.4g} where {int(count[sequence, row, head])} keys are seen"
    return Finding(ok=False, message=f"{text}: row {row} of sequence {sequence}, head {head}")


def _may_select(case: Case) -> bool:
    wide = case.softcap is None or (case.softcap >= 20.0 and case.out_dtype != "float64")  # exp(-30) shows in float64
    scaled = case.scale is None or case.scale != 0.0
    return _plain(case) and case.k_format == "dense" and wide and scaled and case.dtype != "float64" and case.seq_k > 0


def onehot(context: Context, case: Case) -> Finding:
    """A row whose query points at one key returns that key's value."""
    drawn = draw(case)
    scale = case.head_dim**-0.5 if case.scale is None else case.scale
    axis = torch.arange(case.seq_k) % case.head_dim
    k = torch.nn.functional.one_hot(axis, case.head_dim).to(torch.float64)[None, :, None].expand(drawn.k.shape)
    target = _targets(case)  # [B, Sq, Hq]
    q = torch.nn.functional.one_hot(target % case.head_dim, case.head_dim).to(torch.float64) * (GAP / scale)
    logical = drawn.replace(q=q, k=k)
    answer = attend(context, store(logical, context.device))
    seen = seen_keys(logical).transpose(1, 2)  # [B, Sq, Hq, Sk]
    alike = seen & (axis == (target % case.head_dim).unsqueeze(-1))
    alone = alike.sum(dim=-1) == 1
    head = torch.arange(case.q_heads) // (case.q_heads // case.kv_heads)
    value = stored(logical.v, answer.out.dtype if case.out_dtype is None else _kv_dtype(case)).to(answer.out.dtype)
    key = alike.to(torch.int8).argmax(dim=-1)
    expected = value[torch.arange(case.batch)[:, None, None], key, head[None, None, :]]
    got = logical_out(answer.out, logical)
    differ = _other_value(got, expected, context) & alone
    if not bool(differ.any()):
        return Finding(ok=True, message=f"{int(alone.sum())} rows")
    sequence, row, at = (int(index) for index in differ.nonzero()[0])
    text = f"row {row} of sequence {sequence}, head {at}: should be the value of key {int(key[sequence, row, at])}"
    return Finding(ok=False, message=f"{text}, of KV head {int(head[at])}")


def _other_value(got: torch.Tensor, expected: torch.Tensor, context: Context) -> torch.Tensor:
    """Bool [B, Sq, Hq]: rows that are not their key's value, to the last bit where the numerics are exact.

    In float32 to 20 bits: a product may be formed of three tf32 terms, which keep 21.
    """
    coarse = coarseness(context.manifest.numerics)
    if coarse == 0.0 and got.dtype == torch.float32:
        return ~((got - expected).abs() <= 2.0**-20 * expected.abs()).all(dim=-1)
    if coarse == 0.0:
        return (got + 0.0 != expected + 0.0).any(dim=-1)
    size = expected.to(torch.float64)
    error = (got.to(torch.float64) - size).square().mean(dim=-1)
    return ~(error <= (2.0 * coarse) ** 2 * size.square().mean(dim=-1))


def _kv_dtype(case: Case) -> torch.dtype:
    found: torch.dtype = getattr(torch, case.dtype)
    return found


def _has_a_tail(case: Case) -> bool:
    """Many keys, and scores that may differ as much: neither scaled to nothing nor capped."""
    return _plain(case) and case.k_format == "dense" and case.seq_k > FEW and case.scale != 0.0 and case.softcap is None


def _targets(case: Case) -> torch.Tensor:
    """A key for every row, other ones for other heads and sequences."""
    sequence, row, head = torch.meshgrid(
        *(torch.arange(size) for size in (case.batch, case.seq_q, case.q_heads)), indexing="ij"
    )
    return (7 * row + 3 * head + 5 * sequence + 1) % max(case.seq_k, 1)


def ones(context: Context, case: Case) -> Finding:
    """Weights sum to 1, whatever the scores."""
    return _sums_to_one(context, draw(case))


def tail(context: Context, case: Case) -> Finding:
    """Weights sum to 1 where most of the sum are weights of which none would be missed: the first key has the largest."""
    drawn = draw(case)
    scale = case.head_dim**-0.5 if case.scale is None else case.scale
    q, k = torch.zeros_like(drawn.q), torch.zeros_like(drawn.k)
    q[..., 0], k[:, 0, :, 0] = TAIL / scale, 1.0
    return _sums_to_one(context, drawn.replace(q=q, k=k))


def _sums_to_one(context: Context, logical: Logical) -> Finding:
    case, logical = logical.case, logical.replace(v=torch.ones_like(logical.v))
    answer = attend(context, store(logical, context.device))
    some = seen_keys(logical).any(dim=-1).transpose(1, 2).unsqueeze(-1)
    got = logical_out(answer.out, logical).to(torch.float64)
    error = (got - some.to(torch.float64)).abs()
    u = max(torch.finfo(_kv_dtype(case)).eps, torch.finfo(answer.out.dtype).eps) / 2
    allowed = 4.0 * (u + coarseness(context.manifest.numerics)) + 1e-6
    worst = float(error.nan_to_num(nan=torch.inf).max()) if error.numel() else 0.0
    empty_right = bool((got[~some.expand_as(got)] == 0).all())
    ratios = {"ones": worst / allowed}
    if worst <= allowed and empty_right:
        return Finding(ok=True, ratios=ratios)
    return Finding(ok=False, message=f"v = 1 gives 1 off by {worst:.3g}, {allowed:.3g} allowed", ratios=ratios)


_OF_VISIBLE = (
    "CAUSAL-1", "CAUSAL-2", "WINDOW-1", "WINDOW-2", "MASK-1", "MASK-2", "MASK-3", "MASK-4", "VARLEN-1",
    "DENSELEN-1", "DENSELEN-2", "PAGED-1", "PAGED-2", "LSE-1", "SOFTCAP-2",
)  # fmt: skip
_OF_ONEHOT = (
    "GQA-1", "HEADDIM-1", "HEADDIM-2", "SCALE-1", "SCALE-2", "PAGED-1", "PAGED-3", "PAGED-4", "VARLEN-1",
    "STRIDE-1", "STRIDE-2",
)  # fmt: skip


CHECKS = (
    Check(
        name="visible", kind="exact", applies=_plain, run=visible,
        clauses=_OF_VISIBLE, narrowed=shown_by(*_OF_VISIBLE),
    ),
    Check(
        name="lowest", kind="exact", applies=lambda case: case.mask == "bias" and _plain_but_for_bias(case), run=lowest,
        clauses=("BIAS-2", "SCORE-2", "MASK-3"), narrowed=shown_by("BIAS-2", "SCORE-2", "MASK-3"),
    ),
    Check(
        name="onehot", kind="exact", applies=_may_select, run=onehot,
        clauses=_OF_ONEHOT, narrowed=shown_by(*_OF_ONEHOT),
    ),
    Check(
        name="ones", kind="exact", applies=lambda case: _plain(case) and case.seq_q > 0, run=ones,
        clauses=("SCORE-1", "SCORE-2", "MASK-3"), narrowed=shown_by("SCORE-1", "SCORE-2", "MASK-3"),
    ),
    Check(name="tail", kind="exact", applies=_has_a_tail, run=tail, clauses=("SCORE-3",), narrowed=shown_by("SCORE-3")),
)  # fmt: skip
