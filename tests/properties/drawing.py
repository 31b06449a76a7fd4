"""Random requests, tensors and questions out of a seeded `random.Random`; the same seed draws the same on every machine.

The weights are chosen so that every built-in backend is eligible often enough for its boxes to be tried.
"""

from __future__ import annotations

import random
from typing import Any

from attn_backends import Policy, Request
from attn_backends.capability import (
    ALIGNMENTS,
    ATTN_TYPES,
    DTYPES,
    FORMATS,
    GRANULARITIES,
    GRAPH_LEVELS,
    LAYOUTS,
    PHASES,
)
from attn_backends.strides import contiguous, tensor_sizes

COMMON_DEVICES = ("cpu", "h200", "h100")
OTHER_DEVICES = ("a100", "l40s", "b200", "mi300x", "v100", "rtx5090", "sm_121", "sm_86")
DENSE = ("float16", "bfloat16", "float32", "float64")
WIDTHS = (1, 8, 40, 64, 72, 80, 96, 128, 192, 256, 257, 512, 576)
LENGTHS = (0, 1, 2, 3, 63, 64, 65, 127, 128, 192, 512, 1000, 4096, 16384, 16385, 100_000)


def draw_device(rng: random.Random) -> str:
    """A device name for `Device.pretend`; the common ones in three of four draws."""
    return rng.choice(COMMON_DEVICES) if rng.random() < 0.8 else rng.choice(OTHER_DEVICES)


def draw_request(rng: random.Random) -> Request:
    """A legal request: plain ones, over a cache or not, ones with a few features, and any mixture at all."""
    level = rng.choice(("plain", "plain", "plain", "cached", "some", "any"))
    fields = {"plain": _plain, "cached": _cached, "some": _some, "any": _any}[level](rng)
    request = Request(**fields)
    return _with_strides(rng, request) if rng.random() < 0.2 else request


def draw_policy(rng: random.Random, names: tuple[str, ...]) -> Policy | None:
    """None in most draws, else one or two settings."""
    if rng.random() < 0.7:
        return None
    settings: dict[str, Any] = {
        "block": [rng.choice(names)],
        "only": rng.sample(names, 2),
        "prefer": rng.sample(names, 2),
        "numerics": ["exact", "quantized", "approximate"],
        "allow_downcast": True,
        "allow_quarantined": True,
        "forbid_reference": True,
        "rules": [{"when": {"phase": ["decode"], "seq_k": {"max": 777}}, "prefer": [rng.choice(names)]}],
    }
    return Policy(**{name: settings[name] for name in rng.sample(sorted(settings), rng.choice((1, 2)))})


def _plain(rng: random.Random) -> dict[str, Any]:
    """What a model asks most of the time."""
    kv_heads = rng.choice((1, 2, 8))
    seq_k = rng.choice((1, 64, 127, 512, 4096))
    seq_q = seq_k if rng.random() < 0.8 else rng.choice((1, 64, 512))
    width = rng.choice((64, 64, 80, 128, 128))
    layout = rng.choice(("bshd", "bshd", "bhsd", "thd"))
    return {
        "dtype": rng.choice(("float16", "bfloat16", "bfloat16", "bfloat16", "float32")),
        "layout": layout,
        "varlen": layout == "thd",
        "phase": "prefill" if seq_q > 1 else "decode",
        "batch": rng.choice((1, 2, 16)),
        "seq_q": seq_q,
        "seq_k": seq_k,
        "num_q_heads": kv_heads * rng.choice((1, 4, 7)),
        "num_kv_heads": kv_heads,
        "head_dim_qk": width,
        "head_dim_v": width,
        "causal": rng.random() < 0.5,
        "alignment": rng.choice((1, 16, 16, 256)),
    }


def _cached(rng: random.Random) -> dict[str, Any]:
    """What a serving engine asks: new tokens over a paged cache."""
    new = rng.choice((1, 1, 4, 512))
    stored = rng.choice(("dense", "dense", "scaled-fp8-e4m3", "scaled-int8"))
    return {
        **_plain(rng),
        "layout": "bshd",
        "varlen": False,
        "phase": "decode" if new == 1 else "append",
        "seq_q": new,
        "seq_k": rng.choice((512, 4096, 100_000)),
        "causal": True,
        "page_size": rng.choice((1, 16, 64)),
        "kv_layout": rng.choice(("NHD", "HND")),
        "k_format": stored,
        "v_format": stored,
        "k_granularity": "none" if stored == "dense" else "per_head",
        "v_granularity": "none" if stored == "dense" else "per_head",
    }


_FEATURES: dict[str, Any] = {
    "window_left": lambda rng: rng.choice((0, 127, 4096)),
    "window_right": lambda rng: rng.choice((0, 127)),
    "causal_alignment": lambda rng: rng.choice(ALIGNMENTS),
    "mask": lambda _: "bool",
    "bias": lambda _: True,
    "softmax_scale": lambda rng: rng.choice((0.0, 0.1, 1.0)),
    "softcap": lambda rng: rng.choice((1.0, 30.0)),
    "sinks": lambda _: True,
    "alibi": lambda _: True,
    "return_lse": lambda _: True,
    "needs_backward": lambda _: True,
    "deterministic": lambda _: True,
    "batch_invariant": lambda _: True,
    "dense_lengths": lambda _: True,
    "dropout_p": lambda rng: rng.choice((0.0, 0.1)),
    "attn_type": lambda rng: rng.choice(ATTN_TYPES),
    "graph": lambda rng: rng.choice(GRAPH_LEVELS),
    "compile": lambda _: True,
    "nan_safe": lambda _: True,
    "out_dtype": lambda rng: rng.choice(DENSE),
    "alignment": lambda rng: rng.choice((1, 2, 8, 16, 256)),
    "block_mask_size": lambda rng: rng.choice((64, (64, 128))),
}


def _some(rng: random.Random) -> dict[str, Any]:
    """A plain request with one to three features."""
    chosen = rng.sample(sorted(_FEATURES), rng.choice((1, 1, 2, 3)))
    return {**_plain(rng), **{name: _FEATURES[name](rng) for name in chosen}}


def _any(rng: random.Random) -> dict[str, Any]:
    """Any legal values whatever, whether or not they make sense together."""
    kv_heads = rng.choice((1, 2, 3, 8, 64))
    fields: dict[str, Any] = {
        "dtype": rng.choice(DTYPES),
        "layout": rng.choice(LAYOUTS),
        "phase": rng.choice(PHASES),
        "batch": rng.choice((1, 2, 3, 500, 70_000)),
        "seq_q": rng.choice(LENGTHS),
        "seq_k": rng.choice(LENGTHS),
        "num_q_heads": kv_heads * rng.choice((1, 2, 7, 71)),
        "num_kv_heads": kv_heads,
        "head_dim_qk": rng.choice(WIDTHS),
        "head_dim_v": rng.choice(WIDTHS),
        "causal": rng.random() < 0.5,
        "k_format": rng.choice(FORMATS),
        "v_format": rng.choice(FORMATS),
        "q_format": rng.choice(FORMATS),
        "k_granularity": rng.choice(GRANULARITIES),
        "v_granularity": rng.choice(GRANULARITIES),
    }
    if rng.random() < 0.4:
        fields |= {
            "page_size": rng.choice((1, 16, 24, 256)),
            "kv_layout": rng.choice(("NHD", "HND")),
            "num_pages": rng.choice((None, 1, 999, 10**7)),
        }
    if rng.random() < 0.3:
        fields |= {"varlen": True, "total_q": rng.choice((0, 77, 10**6)), "total_k": rng.choice((None, 99, 10**6))}
    chosen = rng.sample(sorted(_FEATURES), rng.choice((0, 1, 4, 9)))
    return {**fields, **{name: _FEATURES[name](rng) for name in chosen}}


def _with_strides(rng: random.Random, request: Request) -> Request:
    sizes = tensor_sizes(request)
    kinds = {
        "none": lambda size: None,
        "plain": lambda size: contiguous(size),
        "padded": lambda size: contiguous((*size[:-1], size[-1] + 8)),
        "doubled": lambda size: tuple(2 * step for step in contiguous(size)),
        "broadcast": lambda size: (0, *contiguous(size)[1:]),
    }
    return request.replace(
        **{f"{name}_strides": kinds[rng.choice(sorted(kinds))](sizes[name]) for name in ("q", "k", "v")}
    )
