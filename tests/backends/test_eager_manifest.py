"""What the manifest declares is what the backend does, and no more."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import attn_backends.call
from attn_backends.box import axis_values, parse_box
from attn_backends.capability import TABLE
from attn_backends.matching import MatchIndex
from attn_backends.request import Request

FILE = Path(attn_backends.call.__file__).parent / "backends" / "eager" / "backend.toml"
MANIFEST = tomllib.loads(FILE.read_text(encoding="utf-8"))
BASE: dict[str, Any] = {
    "dtype": "bfloat16", "seq_q": 5, "seq_k": 7, "num_q_heads": 4, "num_kv_heads": 2, "head_dim_qk": 24,
    "head_dim_v": 16,
}  # fmt: skip
EVERY_FEATURE: dict[str, Any] = {
    "causal": True, "window_left": 3, "softcap": 2.0, "sinks": True, "alibi": True, "mask": "bool", "bias": True,
    "block_mask_size": (64, 128), "dropout_p": 0.1, "return_lse": True, "deterministic": True, "batch_invariant": True,
    "nan_safe": True, "compile": True, "softmax_scale": 0.3, "causal_alignment": "top_left",
    "q_strides": (7, 5, 3, 2), "attn_type": "encoder_decoder", "phase": "mixed",
}  # fmt: skip
PAGED = {"page_size": 3, "kv_layout": "HND", "phase": "decode"}
QUANTISED = {"k_format": "scaled-int8", "v_format": "dense", "k_granularity": "block", "scale_block": 16}
GRADIENTS = {"needs_backward": True, "grad_bias": True, "grad_sinks": True}


def boxes() -> list[Any]:
    def fail(axis: str, why: str) -> Exception:
        return AssertionError(f"{axis}: {why}")

    return [parse_box(raw, f"eager {n}", fail) for n, raw in enumerate(MANIFEST["capability"], 1)]


def missed(request: Request, kind: str, arch: Any) -> set[str]:
    """The axes that the best box misses; empty = it fits."""
    device: Any = SimpleNamespace(kind=kind, arch=arch)
    (verdict,) = MatchIndex([boxes()]).match(axis_values(request, device))
    return {TABLE[row].axis for row, _part in verdict.misses}


@pytest.mark.parametrize(
    ("kind", "arch"), [("cpu", None), ("cuda", (9, 0)), ("cuda", (12, 1)), ("rocm", (9, 4))], ids=lambda v: str(v)
)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        EVERY_FEATURE,
        EVERY_FEATURE | GRADIENTS,
        EVERY_FEATURE | GRADIENTS | {"dtype": "float64", "layout": "thd", "varlen": True, "q_strides": None},
        EVERY_FEATURE | GRADIENTS | {"layout": "bhsd", "dense_lengths": True, "out_dtype": "float32"},
        EVERY_FEATURE | QUANTISED,
        EVERY_FEATURE | PAGED,
        EVERY_FEATURE | PAGED | QUANTISED | {"layout": "thd", "varlen": True, "q_strides": None},
        {"dtype": "float8_e4m3fn", "q_format": "scaled-fp8-e4m3", "q_granularity": "per_head", "out_dtype": "bfloat16"},
        EVERY_FEATURE | GRADIENTS | {"dtype": "int8", "q_format": "scaled-int8", "q_granularity": "per_head"},
        PAGED | {"dtype": "int8", "q_format": "scaled-int8", "q_granularity": "per_tensor", "out_dtype": "float16"},
        {"seq_q": 2**20, "seq_k": 2**20, "batch": 2**12, "window_right": 4},
    ],
    ids=[
        "plain", "all", "all-gradients", "packed-float64", "bhsd-lengths", "quantised", "paged", "paged-quantised-packed",
        "fp8-q", "int8-q-gradients", "paged-int8-q", "64-bit-offsets",
    ],
)  # fmt: skip
def test_every_feature_is_declared(changes: dict[str, Any], kind: str, arch: Any) -> None:
    """The reference serves whatever the contract allows, on every device that it declares."""
    assert missed(Request(**{**BASE, **changes}), kind, arch) == set()


@pytest.mark.parametrize(
    ("changes", "axes"),
    [
        (PAGED | {"needs_backward": True}, {"backward"}),
        (QUANTISED | {"needs_backward": True}, {"backward"}),
        (PAGED | {"sinks": True, "grad_sinks": True}, {"grad_sinks"}),
        ({"graph": "uniform_decode"}, {"graph"}),
        ({"graph": "always"}, {"graph"}),
        ({"out_dtype": "int8"}, {"out_dtype"}),
        ({"unknown": ("new_thing",)}, {"unknown_feature"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, set) else None,
)
def test_what_it_cannot_do_is_refused(changes: dict[str, Any], axes: set[str]) -> None:
    """No gradient beside a cache or a quantised K or V, no capture, no integer output."""
    assert missed(Request(**{**BASE, **changes}), "cpu", None) == axes


def test_another_device_is_refused() -> None:
    """Only the three kinds that it was written for."""
    assert missed(Request(**BASE), "mps", None) == {"device"}


@pytest.mark.parametrize("door", ["kernel", "backward"])
def test_the_manifest_names_callables_that_exist(door: str) -> None:
    """`kernel` and `backward` lead to functions."""
    module, _, name = MANIFEST[door].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_it_is_the_reference_of_lowest_priority() -> None:
    """Any other backend that fits comes first, and falling to this one is visible."""
    assert (MANIFEST["tier"], MANIFEST["priority"], MANIFEST["numerics"]) == ("reference", 0, "exact")
