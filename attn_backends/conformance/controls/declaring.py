"""What controls (and the mutants' host) declare: boxes over the whole contract, narrowed where one cannot.

dense      float tensors, dense or packed, with every gradient
quantised  K, V or q as scaled codes, dense or packed
paged      a paged cache of any format
"""

from __future__ import annotations

from typing import Any

Box = dict[str, Any]

FLOATS = ["float16", "bfloat16", "float32", "float64"]
CODES = ["float8_e4m3fn", "float8_e5m2", "int8"]
FORMATS = ["scaled-fp8-e4m3", "scaled-fp8-e5m2", "scaled-int8"]
GRANULARITIES = ["none", "per_tensor", "per_head", "per_channel", "per_token_head", "block"]
BOTH = [False, True]
GRADIENTS = ("backward", "grad_bias", "grad_sinks")


def dense(**changes: Any) -> Box:
    """Float tensors, dense or packed; every feature and gradient, but `nan_safe` and `compile`."""
    return {
        "device": ["cpu", "cuda"], "arch": "any", "dtype": FLOATS, "out_dtype": ["same", *FLOATS], "kv_format": ["dense"],
        "layout": ["bshd", "bhsd", "thd"], "phase": "any", "attn_type": "any", "head_dim": "any", "head_dim_v": "any",
        "gqa_ratio": "any", "seq_len": "any", "causal": BOTH, "causal_alignment": ["bottom_right", "top_left"],
        "window": ["none", "left", "two_sided"], "mask": ["none", "bool"], "bias": BOTH, "block_mask": "any",
        "scale": ["default", "custom"], "softcap": BOTH, "sinks": BOTH, "alibi": BOTH, "dropout": BOTH, "lse": BOTH,
        "backward": BOTH, "grad_bias": BOTH, "grad_sinks": BOTH, "deterministic": BOTH, "batch_invariant": BOTH,
        "varlen": BOTH, "dense_lengths": BOTH, "strides": ["any"], "index_width": [32, 64], **changes,
    }  # fmt: skip


def quantised(**changes: Any) -> Box:
    """K, V or both as codes with descales; no gradients."""
    box = {name: value for name, value in dense().items() if name not in GRADIENTS}
    return {**box, "kv_format": ["dense", *FORMATS], "scale_granularity": GRANULARITIES, **changes}


def quantised_q(**changes: Any) -> Box:
    """q as codes too."""
    return quantised(**{"dtype": CODES, "q_format": FORMATS, **changes})


def paged(**changes: Any) -> Box:
    """A paged cache of any format and page size."""
    return quantised(**{"kv_layout": ["NHD", "HND"], "page_size": {"min": 1}, **changes})


def manifest(name: str, *boxes: Box, backward: bool = True) -> Box:
    """The manifest of the control in module `name`, which every box opens alike."""
    module = f"attn_backends.conformance.controls.{name}"
    found: Box = {
        "schema": 1, "name": f"control_{name}", "version": "1.0.0", "api": ">=1.0,<2", "priority": -100,
        "kernel": f"{module}:run", "capability": [dict(box) for box in boxes],
    }  # fmt: skip
    return {**found, "backward": f"{module}:backward"} if backward else found
