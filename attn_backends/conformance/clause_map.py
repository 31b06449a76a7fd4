"""Which clauses of the spec a case speaks of, by its features; what an item of a report names. No torch here.

A check lists every clause that it can prove; on one case it proves those whose feature the case has.
"""

from __future__ import annotations

from collections.abc import Callable

from attn_backends.conformance.case import Case
from attn_backends.conformance.case_request import needs_backward

Has = Callable[[Case], bool]
FEW = 2048  # keys of a weight 2^-11 of the largest that together weigh no more than it


def _hides(case: Case) -> bool:
    """Whether some row may see nothing."""
    short = case.causal and case.seq_q > case.seq_k and not case.top_left
    return short or case.ragged or case.mask != "none" or case.block_mask is not None or case.seq_k == 0


def _windowed(case: Case) -> bool:
    return case.left >= 0 or case.right >= 0


def _quantised(case: Case) -> bool:
    return case.granularity != "none"


_FEATURES: tuple[tuple[str, Has], ...] = (
    ("SCORE-1", lambda _case: True),
    ("SCORE-2", lambda c: c.values == "large"),
    ("SCORE-3", lambda c: c.seq_k > FEW),
    ("SCALE-1", lambda c: c.scale is None),
    ("SCALE-2", lambda c: c.scale is not None),
    ("SOFTCAP-1", lambda c: c.softcap is not None),
    ("SOFTCAP-2", lambda c: c.softcap is not None and (_hides(c) or c.causal)),
    ("BIAS-1", lambda c: c.mask == "bias"),
    ("BIAS-2", lambda c: c.mask == "bias"),
    ("ALIBI-1", lambda c: c.alibi),
    ("ALIBI-2", lambda c: c.alibi),
    ("SINK-1", lambda c: c.sinks),
    ("SINK-2", lambda c: c.sinks and _hides(c)),
    ("CAUSAL-1", lambda c: c.causal and not c.top_left),
    ("CAUSAL-2", lambda c: (c.causal or c.alibi or _windowed(c)) and c.top_left),
    ("WINDOW-1", _windowed),
    ("WINDOW-2", _windowed),
    ("MASK-1", lambda c: c.mask == "bool"),
    ("MASK-2", lambda c: (c.mask != "none" or c.block_mask is not None) and (c.causal or _windowed(c))),
    ("MASK-3", _hides),
    ("MASK-4", lambda c: c.block_mask is not None),
    ("POISON-1", lambda c: c.ragged or c.page_size is not None),
    ("GQA-1", lambda c: c.q_heads != c.kv_heads),
    ("HEADDIM-1", lambda c: c.head_dim != c.head_dim_v),
    ("HEADDIM-2", lambda c: c.head_dim % 16 != 0 or c.head_dim_v % 16 != 0),
    ("VARLEN-1", lambda c: c.layout == "thd"),
    ("VARLEN-2", lambda c: c.layout == "thd" and c.ragged),
    ("VARLEN-3", lambda c: c.layout == "thd" and c.ragged and c.page_size is None),
    ("DENSELEN-1", lambda c: c.ragged and c.layout != "thd" and c.page_size is None),
    ("DENSELEN-2", lambda c: c.ragged and c.layout != "thd" and c.page_size is None and (c.causal or _windowed(c))),
    ("PAGED-1", lambda c: c.page_size is not None),
    ("PAGED-2", lambda c: c.page_size is not None),
    ("PAGED-3", lambda c: c.page_size is not None),
    ("PAGED-4", lambda c: c.page_size is not None and c.layout == "thd"),
    ("QUANT-1", _quantised),
    ("QUANT-2", _quantised),
    ("QUANT-3", lambda c: c.k_format != c.v_format or c.granularity_v is not None),
    ("QUANT-4", lambda c: c.q_format != "dense"),
    ("DROPOUT-1", lambda c: c.dropout > 0),
    ("DROPOUT-2", lambda c: c.dropout > 0),
    ("STRIDE-1", lambda c: c.memory not in ("contiguous", "odd_unit_strides")),
    ("STRIDE-2", lambda c: c.memory == "odd_unit_strides"),
    ("DOWNCAST-1", lambda c: c.dtype in ("float32", "float64")),
)
_OF_LSE = ("LSE-1", "LSE-2")
_OF_GRADIENTS: tuple[tuple[str, Has], ...] = (
    ("BACKWARD-1", needs_backward),
    ("BACKWARD-2", lambda c: needs_backward(c) and _hides(c)),
    ("BACKWARD-3", lambda c: needs_backward(c) and c.lse),
    ("BACKWARD-4", lambda c: c.grad_bias),
    ("BACKWARD-5", lambda c: c.grad_sinks),
)
_ALWAYS = ("PURITY-3", "PURITY-4", "DECLARE-1", "REFUSE-2", "EVIDENCE-1")

OF_FORWARD = (*(clause for clause, _ in _FEATURES), *_OF_LSE, *_ALWAYS)
OF_BACKWARD = (*OF_FORWARD, *(clause for clause, _ in _OF_GRADIENTS))


def forward_clauses(case: Case) -> tuple[str, ...]:
    """What a right output (and LSE) of this case shows."""
    found = [clause for clause, has in _FEATURES if has(case)]
    return (*found, *(_OF_LSE if case.lse else ()), *_ALWAYS)


def backward_clauses(case: Case) -> tuple[str, ...]:
    """What right gradients of this case show besides."""
    return (*forward_clauses(case), *(clause for clause, has in _OF_GRADIENTS if has(case)))


def shown_by(*clauses: str) -> Callable[[Case], tuple[str, ...]]:
    """Those of a check's clauses that a case speaks of; the ones that no feature decides always count."""
    decided = {clause for clause, _ in (*_FEATURES, *_OF_GRADIENTS)} | set(_OF_LSE)

    def narrowed(case: Case) -> tuple[str, ...]:
        shown = set(backward_clauses(case))
        return tuple(clause for clause in clauses if clause in shown or clause not in decided)

    return narrowed
