"""`Seams`: the victim's functions, every one right; a mutant is `dataclasses.replace(Seams(), one=wrong)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from attn_backends.call import Call
from attn_backends.conformance.controls import places as layout
from attn_backends.conformance.controls.places import Place
from attn_backends.conformance.mutants import flowing, hiding, reading, scoring, summing, writing

Seam = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """Signatures and meaning stand at the defaults."""

    # reading
    places: Seam = layout.places
    strided: Seam = reading.strided
    rows_of: Seam = reading.rows_of
    scale_of: Seam = reading.scale_of
    values_of: Seam = reading.values_of
    logical: Seam = reading.logical
    kv_head: Seam = reading.kv_head
    work_dtype: Seam = reading.work_dtype
    # who sees whom
    diagonal: Seam = hiding.diagonal
    shown_by_causal: Seam = hiding.shown_by_causal
    shown_by_window: Seam = hiding.shown_by_window
    own_mask: Seam = hiding.own_mask
    shown_by_mask: Seam = hiding.shown_by_mask
    shown_by_blocks: Seam = hiding.shown_by_blocks
    composed: Seam = hiding.composed
    # scores
    scale: Seam = scoring.scale
    capped: Seam = scoring.capped
    bias: Seam = scoring.bias
    alibi: Seam = scoring.alibi
    logits: Seam = scoring.logits
    # softmax
    splits: Seam = summing.splits
    tiles: Seam = summing.tiles
    absorbed: Seam = summing.absorbed
    merged: Seam = summing.merged
    sinks: Seam = summing.sinks
    with_sink: Seam = summing.with_sink
    finished: Seam = summing.finished
    weighted: Seam = summing.weighted
    keep: Seam = summing.keep
    rescaled: Seam = summing.rescaled
    # backward
    delta: Seam = flowing.delta
    row_term: Seam = flowing.row_term
    d_scores: Seam = flowing.d_scores
    cap_slope: Seam = flowing.cap_slope
    d_query: Seam = flowing.d_query
    d_key: Seam = flowing.d_key
    over_rows: Seam = flowing.over_rows
    by_kv_head: Seam = flowing.by_kv_head
    into_mask: Seam = flowing.into_mask
    d_sinks: Seam = flowing.d_sinks
    # around
    entered: Seam = writing.entered
    stored: Seam = writing.stored
    left: Seam = writing.left


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """One sequence on its way: values in the work dtype, K and V once per query head.

    q [Hq, Sq, D], k [Hq, Sk, D], v [Hq, Sk, Dv]; distance int64 [Sq, Sk]; seen, keep bool [Hq, Sq, Sk]; added [Hq, Sq, Sk]
    """

    seams: Seams
    call: Call
    place: Place
    kv_heads: int
    own: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    seen: torch.Tensor
    added: torch.Tensor | None
    keep: torch.Tensor | None
