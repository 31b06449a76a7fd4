"""What the backend promises, as data, against its manifest: every feature fits alone, in pairs and all together."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from itertools import combinations
from typing import Any

import pytest

from attn_backends.box import axis_values, parse_box
from attn_backends.capability import TABLE
from attn_backends.device import Device
from attn_backends.matching import MatchIndex
from attn_backends.request import Request

SIZES: dict[str, Any] = {
    "dtype": "bfloat16", "seq_q": 300, "seq_k": 700, "num_q_heads": 6, "num_kv_heads": 2, "head_dim_qk": 64,
    "head_dim_v": 64,
}  # fmt: skip
FEATURES: dict[str, dict[str, Any]] = {
    "float16": {"dtype": "float16"},
    "float32": {"dtype": "float32"},
    "bhsd": {"layout": "bhsd"},
    "more queries than keys": {"seq_q": 900},
    "causal": {"causal": True},
    "causal from the first key": {"causal": True, "causal_alignment": "top_left"},
    "window": {"window_left": 100},
    "window on both sides": {"window_left": 100, "window_right": 50},
    "packed sequences": {"layout": "thd", "varlen": True, "batch": 3, "total_q": 700, "total_k": 1500},
    "key padding": {"dense_lengths": True, "batch": 3},
    "bool mask": {"mask": "bool"},
    "bias": {"bias": True},
    "bias whose gradient is asked for": {"bias": True, "needs_backward": True, "grad_bias": True},
    "block mask": {"block_mask_size": (64, 64)},
    "softcap": {"softcap": 30.0},
    "sinks": {"sinks": True},
    "sinks whose gradient is asked for": {"sinks": True, "needs_backward": True, "grad_sinks": True},
    "alibi": {"alibi": True},
    "dropout": {"dropout_p": 0.1},
    "own scale": {"softmax_scale": -0.3},
    "lse": {"return_lse": True},
    "gradients": {"needs_backward": True},
    "deterministic": {"deterministic": True, "needs_backward": True},
    "batch invariant": {"batch_invariant": True},
    "compiled": {"compile": True},
    "captured": {"graph": "always"},
    "any strides": {"q_strides": (100000, 7, 300, 2), "k_strides": (1, 2, 3, 4), "v_strides": (0, 0, 64, 1)},
}
APART = {"any strides", "packed sequences"}  # these strides are those of dense tensors
WIDTHS = ((16, 16), (40, 40), (72, 72), (80, 80), (96, 96), (192, 192), (192, 128), (256, 256))
GQA = ((8, 8), (8, 1), (7, 1), (10, 2), (12, 2), (64, 8))


@cache
def index() -> MatchIndex:
    """The manifest's boxes."""

    def fail(axis: str, why: str) -> Exception:
        return AssertionError(f"{axis}: {why}")

    declared = tomllib.loads((files("attn_backends.backends.triton_tiled") / "backend.toml").read_text("utf-8"))
    return MatchIndex([[parse_box(raw, f"box {n}", fail) for n, raw in enumerate(declared["capability"], 1)]])


def refusals(given: dict[str, Any]) -> set[str]:
    """The axes on which triton_tiled refuses a call on an H200; none where it serves it."""
    (verdict,) = index().match(axis_values(Request(**SIZES | given), Device.pretend("h200")))
    return {TABLE[row].axis for row, _part in verdict.misses}


@pytest.mark.parametrize("name", FEATURES)
def test_each_feature_is_served(name: str) -> None:
    """Alone, forward and in training."""
    assert refusals(FEATURES[name]) == set()
    assert refusals(FEATURES[name] | {"needs_backward": True}) == set()


def test_any_two_are_served_together() -> None:
    """No box leaves a combination out."""
    refused = {
        (one, other): why
        for one, other in combinations(FEATURES, 2)
        if {one, other} != APART and (why := refusals(FEATURES[one] | FEATURES[other]))
    }
    assert refused == {}


def test_all_are_served_together() -> None:
    """With whatever of two that exclude each other comes last."""
    together: dict[str, Any] = {}
    for name, given in FEATURES.items():
        if name != "packed sequences":
            together |= given
    assert refusals(together) == set()


@pytest.mark.parametrize(("width", "width_v"), WIDTHS)
@pytest.mark.parametrize(("heads", "kv_heads"), GQA)
def test_widths_and_groups(width: int, width_v: int, heads: int, kv_heads: int) -> None:
    """Every pair of widths with every ratio of heads."""
    given = {"head_dim_qk": width, "head_dim_v": width_v, "num_q_heads": heads, "num_kv_heads": kv_heads}
    assert refusals(given | {"needs_backward": True}) == set()


@pytest.mark.parametrize(
    ("given", "axis"),
    [
        ({"page_size": 16, "kv_layout": "NHD", "phase": "decode"}, "page_size"),
        ({"k_format": "scaled-int8", "k_granularity": "per_tensor"}, "kv_format"),
        ({"dtype": "float64"}, "dtype"),
        ({"head_dim_qk": 320}, "head_dim"),
        ({"nan_safe": True}, "nan_safe"),
    ],
)
def test_what_is_not_declared_is_refused_by_its_axis(given: dict[str, Any], axis: str) -> None:
    """So the list above could fail."""
    assert axis in refusals(given)
