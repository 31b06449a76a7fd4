"""`canonical`: a case whose fields go together, so that its call is legal and its id reads back to it. No torch here."""

from __future__ import annotations

from typing import Any

from attn_backends.conformance.case import Case

RAGGED_BATCH = 4  # shorter, full, no keys, no queries

_Q_FORMATS = {"float8_e4m3fn": "scaled-fp8-e4m3", "float8_e5m2": "scaled-fp8-e5m2", "int8": "scaled-int8"}


def canonical(case: Case) -> Case:
    """The case with what hangs on other fields set right."""
    changes: dict[str, Any] = {"q_format": _Q_FORMATS.get(case.dtype, "dense")}
    formats = (changes["q_format"], case.k_format, case.v_format)
    if formats == ("dense",) * 3:
        changes["granularity"] = "none"
    elif case.granularity == "none":
        changes["granularity"] = "per_tensor"
    if case.v_format == "dense" or case.granularity_v == changes.get("granularity", case.granularity):
        changes["granularity_v"] = None
    if case.mask == "none":
        changes["mask_dims"] = 4
    if "dense" not in formats:
        changes["grads"] = False
    grads = changes.get("grads", case.grads)
    changes["grad_bias"] = case.grad_bias and case.mask == "bias" and grads
    changes["grad_sinks"] = case.grad_sinks and case.sinks and grads
    if case.block_mask is None or case.block_mask_k == case.block_mask:
        changes["block_mask_k"] = None
    if case.page_size is None:
        changes["kv_layout"] = "NHD"
    if case.ragged and case.batch < RAGGED_BATCH:
        changes["batch"] = RAGGED_BATCH
    hangs = case.causal or case.alibi or case.left >= 0 or case.right >= 0
    changes["top_left"] = case.top_left and hangs
    return case.replace(**changes)
