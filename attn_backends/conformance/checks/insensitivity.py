"""What must not reach an output: future keys, poison where nobody looks, huge numbers at keys that a row does not see."""

from __future__ import annotations

from collections.abc import Callable

import torch

from attn_backends.conformance.case import Case
from attn_backends.conformance.case_request import kv_dtype, needs_backward
from attn_backends.conformance.checks.against_oracle import judged, judged_forward
from attn_backends.conformance.checks.calling import Answer, attend, everything
from attn_backends.conformance.checks.check import RIGHT, Check, Context, Finding
from attn_backends.conformance.checks.comparing import near
from attn_backends.conformance.checks.repeatable import unchanged
from attn_backends.conformance.checks.seen import logical_lse, logical_out, seen_keys, size_of
from attn_backends.conformance.clause_map import shown_by
from attn_backends.conformance.drawing import Logical, draw
from attn_backends.conformance.inputs import store

HUGE = 1e30
OUTLYING = 2.0  # how many times as large a key becomes where numbers are quantised

Change = Callable[[torch.Tensor], torch.Tensor]


def _diagonal(case: Case) -> bool:
    return case.causal or case.right >= 0


def future(context: Context, case: Case) -> Finding:
    """Other numbers at keys behind the diagonal of the middle row: the rows up to there keep their bits."""
    before = draw(case)
    middle = case.seq_q // 2
    hidden = ~seen_keys(before)[:, :, : middle + 1].any(dim=2).any(dim=1)  # [B, Sk]
    after = _changed(before, hidden, 3.0 if context.manifest.numerics == "exact" else 0.0)
    rows = torch.zeros((case.batch, case.seq_q, case.q_heads), dtype=torch.bool)
    rows[:, : middle + 1] = True
    return _same_rows(context, before, after, rows, "keys behind the diagonal", finite=True)


def _changed(logical: Logical, keys: torch.Tensor, value: float) -> Logical:
    """K and V times -1 and plus a number at these keys [B, Sk]."""
    at = keys[:, :, None, None]
    return logical.replace(
        k=torch.where(at, value - logical.k, logical.k), v=torch.where(at, value - logical.v, logical.v)
    )  # fmt: skip


def poison(context: Context, case: Case) -> Finding:
    """NaN (at odd seeds inf) where no token is, or zeros there: the same bits, in gradients too."""
    clean, poisoned = (store(draw(case).replace(junk=junk), context.device) for junk in (0.0, draw(case).junk))
    want, got = everything(context, case, clean), everything(context, case, poisoned)
    return unchanged(
        case, want, got, "what lies where no token is",
        again=lambda: everything(context, case, clean), within=lambda: judged(context, case, poisoned, got),
    )  # fmt: skip


def _hides_keys(case: Case) -> bool:
    return case.mask != "none" or case.left >= 0 or case.block_mask is not None or (case.causal and case.top_left)


def unseen(context: Context, case: Case) -> Finding:
    """NaN (at odd seeds inf) in K and V at keys that no row of their sequence sees: the same bits."""
    drawn = _with_unseen_key(draw(case))
    hidden = ~seen_keys(drawn).any(dim=2).any(dim=1)
    at = hidden[:, :, None, None]
    junk = torch.tensor(drawn.junk, dtype=torch.float64)
    after = drawn.replace(k=torch.where(at, junk, drawn.k), v=torch.where(at, junk, drawn.v))
    rows = torch.ones((case.batch, case.seq_q, case.q_heads), dtype=torch.bool)
    return _same_rows(context, drawn, after, rows, f"{drawn.junk} at keys that no row sees")


def _with_unseen_key(logical: Logical) -> Logical:
    """A mask hides one key from everybody, so that there is one."""
    if logical.mask is None or logical.case.seq_k < 2:
        return logical
    mask = logical.mask.clone()
    mask[..., logical.case.seq_k // 3] = False if logical.case.mask == "bool" else float("-inf")
    return logical.replace(mask=mask)


def huge(context: Context, case: Case) -> Finding:
    """1e30 (or the largest number of the dtype) at a key: rows that do not see it keep their bits.

    A quantiser has no digits left for others beside such a number: there the key is some times as large as it was.
    """
    if context.manifest.numerics != "exact":
        return _at_one_key(context, case, lambda own: own * OUTLYING, "a key that they do not see", finite=True)
    top = min(HUGE, float(torch.finfo(getattr(torch, kv_dtype(case))).max) / 2)
    what = f"{top:.3g} at a key that they do not see"
    return _at_one_key(context, case, lambda own: torch.full_like(own, top), what, finite=True)


def nan_safe(context: Context, case: Case) -> Finding:
    """NaN at a key: rows that do not see it keep their bits."""
    nan = float("nan")
    return _at_one_key(context, case, lambda own: torch.full_like(own, nan), "NaN at a key that they do not see")


def _at_one_key(context: Context, case: Case, change: Change, what: str, *, finite: bool = False) -> Finding:
    drawn = draw(case)
    seen = seen_keys(drawn).transpose(1, 2)  # [B, Sq, Hq, Sk]
    partly = seen.any(dim=1).any(dim=1) & ~seen.all(dim=1).all(dim=1)  # [B, Sk]
    if not bool(partly.any()):
        return RIGHT
    key = partly.to(torch.int8).argmax(dim=-1)  # the first such key of each sequence
    chosen = torch.zeros_like(partly)
    chosen[torch.arange(case.batch), key] = partly.any(dim=-1)
    at = chosen[:, :, None, None]
    after = drawn.replace(
        k=torch.where(at, change(drawn.k), drawn.k), v=torch.where(at, change(drawn.v), drawn.v)
    )  # fmt: skip
    rows = ~(seen & chosen[:, None, None]).any(dim=-1)
    return _same_rows(context, drawn, after, rows, what, finite=finite)


def _same_rows(
    context: Context, before: Logical, after: Logical, rows: torch.Tensor, what: str, *, finite: bool = False
) -> Finding:
    """Rows [B, Sq, Hq] of out and lse, bit-equal for two sets of numbers.

    finite: the changed numbers are; under a quantiser they may share a scale with the others, and then the second answer
    is judged by the tolerance, whose baseline has that quantiser too.
    """
    case, inputs, changed = before.case, store(before, context.device), store(after, context.device)
    answer = attend(context, changed)
    if finite and context.manifest.numerics != "exact":
        return judged_forward(context, case, changed, answer)
    want, got = _rows(attend(context, inputs), before, rows), _rows(answer, after, rows)
    return unchanged(
        case, want, got, what,
        again=lambda: _rows(attend(context, inputs), before, rows),
        within=lambda: near(context, _answer(got), _answer(want), inputs, what, size_of(before)),
    )  # fmt: skip


def _answer(parts: dict[str, torch.Tensor]) -> Answer:
    return Answer(out=parts["out"], lse=parts.get("lse"))


def _rows(answer: Answer, logical: Logical, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Those rows; a weight of 0 times numbers of either sign is a zero of either sign, so that -0 counts as 0."""
    found = {"out": logical_out(answer.out, logical)[rows] + 0.0}
    if answer.lse is not None:
        found["lse"] = logical_lse(answer.lse, logical)[rows]
    return found


def upper_bounds(context: Context, case: Case) -> Finding:
    """max_seqlen_q and max_seqlen_k may be larger than any sequence."""
    drawn, what = draw(case), "max_seqlen_q and max_seqlen_k"
    inputs = store(drawn, context.device)
    more = {name: inputs.given[name] + 7 for name in ("max_seqlen_q", "max_seqlen_k")}
    want, got = attend(context, inputs), attend(context, inputs, **more)
    return unchanged(
        case, want.parts(), got.parts(), what,
        again=lambda: attend(context, inputs).parts(),
        within=lambda: near(context, got, want, inputs, what, size_of(drawn)),
    )  # fmt: skip


def _dense_forward(case: Case) -> bool:
    formats = (case.q_format, case.k_format, case.v_format)
    return not needs_backward(case) and formats == ("dense",) * 3 and case.seq_q > 0 and case.seq_k > 0


CHECKS = (
    Check(
        name="future", kind="property", run=future, clauses=("CAUSAL-1", "CAUSAL-2", "POISON-2"),
        narrowed=shown_by("CAUSAL-1", "CAUSAL-2", "POISON-2"),
        applies=lambda case: _diagonal(case) and case.seq_q > 1 and case.seq_k > 1 and not needs_backward(case),
    ),
    Check(
        name="poison", kind="property", run=poison, clauses=("POISON-1", "PAGED-2", "VARLEN-3", "DENSELEN-1"),
        narrowed=shown_by("POISON-1", "PAGED-2", "VARLEN-3", "DENSELEN-1"),
        applies=lambda case: case.ragged or case.page_size is not None or case.memory.startswith(("row_", "last_dim")),
    ),
    Check(
        name="unseen", kind="property", run=unseen, clauses=("POISON-1",),
        applies=lambda case: _dense_forward(case) and _hides_keys(case),
    ),
    Check(
        name="huge", kind="property", run=huge, clauses=("POISON-2",),
        applies=lambda case: _dense_forward(case) and (_diagonal(case) or _hides_keys(case)),
    ),
    Check(
        name="nan_safe", kind="property", run=nan_safe, clauses=("POISON-3",),
        applies=lambda case: _dense_forward(case) and case.nan_safe and (_diagonal(case) or _hides_keys(case)),
    ),
    Check(
        name="upper_bounds", kind="property", run=upper_bounds, clauses=("VARLEN-3",),
        applies=lambda case: case.layout == "thd" and case.page_size is None and "block" not in case.granularities
        and case.mask == "none" and case.block_mask is None and not needs_backward(case),
    ),
)  # fmt: skip
