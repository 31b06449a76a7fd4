"""How to take a case out of a declaration along one axis: for each axis of the table, changes that may leave it. No torch.

Whether a change does leave a declaration, and what else it misses, is for `standing` to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attn_backends import capability as table
from attn_backends.conformance.canonical import canonical
from attn_backends.conformance.case import MEMORIES, Case

Changes = dict[str, Any]

_WIDTHS = (72, 33, 96, 128, 160, 192, 256, 320, 512, 576, 1, 1024)
_RATIOS = ((4, 4), (4, 2), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (16, 1), (32, 1), (64, 1))
_LENGTHS = ((1, 33), (17, 1), (0, 33), (17, 0), (2, 33), (17, 9), (300, 33), (17, 700), (5000, 9), (9, 5000),
            (20000, 9), (9, 20000), (140000, 9), (9, 140000))  # fmt: skip
_QUANTISED = table.FORMATS[1:]
_GRANULARITIES = table.GRANULARITIES[1:]
LARGEST_RUN = 2**22  # numbers in the largest tensor of a case that is still run, not only asked about

FLIPS: dict[str, tuple[Changes, ...]] = {
    "dtype": tuple({"dtype": dtype} for dtype in table.DTYPES),
    "out_dtype": tuple({"out_dtype": dtype} for dtype in table.DTYPES[:4]),
    "kv_format": tuple(
        {"k_format": fmt, "v_format": fmt, "granularity": granularity}
        for fmt in (*_QUANTISED, "dense")
        for granularity in ("per_tensor", "per_head")
    ),
    "q_format": tuple({"dtype": dtype, "granularity": "per_tensor"} for dtype in table.DTYPES[4:]),
    "scale_granularity": tuple(
        {"granularity": granularity, **formats}
        for granularity in _GRANULARITIES
        for formats in ({}, *({"k_format": fmt, "v_format": fmt} for fmt in _QUANTISED))
    ),
    "layout": tuple({"layout": layout} for layout in table.LAYOUTS),
    "phase": tuple({"phase": phase} for phase in table.PHASES),
    "attn_type": tuple({"attn_type": word} for word in table.ATTN_TYPES),
    "head_dim": tuple({"head_dim": width} for width in _WIDTHS),
    "head_dim_v": tuple({"head_dim_v": width} for width in _WIDTHS),
    "gqa_ratio": tuple({"q_heads": q, "kv_heads": kv} for q, kv in _RATIOS),
    "seq_len": tuple({"seq_q": q, "seq_k": k} for q, k in _LENGTHS),
    "causal": ({"causal": True}, {"causal": False}),
    "mask": ({"mask": "bool"},),
    "causal_alignment": ({"causal": True, "top_left": True}, {"causal": True, "top_left": False}),
    "window": ({"left": 5}, {"left": 5, "right": 3, "causal": False}),
    "bias": ({"mask": "bias"},),
    "block_mask": ({"block_mask": 16}, {"block_mask": 24}),
    "scale": ({"scale": 0.3},),
    "softcap": ({"softcap": 2.0},),
    "sinks": ({"sinks": True},),
    "alibi": ({"alibi": True},),
    "dropout": ({"dropout": 0.3},),
    "lse": ({"lse": True}, {"lse": False}),
    "backward": ({"grads": True}, {"grads": True, "lse": False}),
    "grad_bias": ({"mask": "bias", "grads": True, "grad_bias": True},),
    "grad_sinks": ({"sinks": True, "grads": True, "grad_sinks": True},),
    "deterministic": ({"deterministic": True},),
    "batch_invariant": ({"batch_invariant": True},),
    "varlen": ({"layout": "thd", "ragged": True},),
    "dense_lengths": ({"ragged": True, "layout": "bshd"}, {"ragged": True, "layout": "bhsd"}),
    "nan_safe": ({"nan_safe": True},),
    "kv_layout": ({"page_size": 16, "kv_layout": "NHD"}, {"page_size": 16, "kv_layout": "HND"}),
    "page_size": tuple({"page_size": size} for size in (16, 32, 64, 128, 256, 12, 8, 5, 1)),
    "strides": tuple({"memory": memory} for memory in MEMORIES),
    "alignment": ({"memory": "row_padded", "head_dim": 33}, {"memory": "last_dim_step2", "head_dim": 33}),
    "index_width": ({"batch": 1, "seq_q": 1, "seq_k": 2**27}, {"batch": 1, "seq_q": 2**27, "seq_k": 1}),
}

# Asked of the selector on the request itself, since no case has a word for them.
ON_REQUEST = ("device", "arch", "graph", "compile", "unknown_feature")

# A right result does not show that these are kept, or nothing of a run depends on them.
NOT_PROBED = (*ON_REQUEST, "deterministic", "batch_invariant", "nan_safe", "index_width", "alignment")


def flipped(case: Case, axis: str) -> Iterator[Case]:
    """Cases that differ from this one along an axis, and in what that brings with it."""
    for changes in FLIPS.get(axis, ()):
        other = canonical(case.replace(**changes))
        if other != case:
            yield other


def small_enough(case: Case) -> bool:
    """Whether the case's call can be made here."""
    rows = case.batch * max(case.q_heads, case.kv_heads)
    widest = max(case.head_dim, case.head_dim_v)
    return rows * max(case.seq_q, case.seq_k) * widest <= LARGEST_RUN and rows * case.seq_q * case.seq_k <= LARGEST_RUN
