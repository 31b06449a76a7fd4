"""A quantised tensor without a descale is told what it lacks, rather than that its dtype is not supported."""

from __future__ import annotations

from typing import Any

import pytest

from attn_backends import Policy, Request
from attn_backends.quantization import AXES, descale_hint, unscaled
from attn_backends.selector.explain import decide

SHAPE: dict[str, Any] = {
    "seq_q": 512, "seq_k": 512, "num_q_heads": 8, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_v": 128, "alignment": 16,
}  # fmt: skip
E4M3: dict[str, Any] = {"dtype": "float8_e4m3fn"}
Q: dict[str, Any] = {"q_format": "scaled-fp8-e4m3", "q_granularity": "per_tensor"}
KV: dict[str, Any] = {
    "k_format": "scaled-fp8-e4m3", "v_format": "scaled-fp8-e4m3", "k_granularity": "per_head", "v_granularity": "per_head",
}  # fmt: skip
LACKING = {
    "plain e4m3": (E4M3, ("q", "k", "v")),
    "plain e5m2": ({"dtype": "float8_e5m2"}, ("q", "k", "v")),
    "plain int8": ({"dtype": "int8"}, ("q", "k", "v")),
    "q lacks its own": ({**E4M3, **KV}, ("q",)),
    "formats alone": ({**E4M3, **Q, **KV, "q_granularity": "none", "v_granularity": "none"}, ("q", "v")),
    "a cache without scales": ({"dtype": "bfloat16", **KV, "k_granularity": "none"}, ("k",)),
    "all there": ({**E4M3, **Q, **KV}, ()),
    "fp8 q over a dense cache": ({**E4M3, **Q}, ()),
    "dense": ({"dtype": "bfloat16"}, ()),
}


@pytest.mark.parametrize("name", LACKING)
def test_what_lacks_a_descale(name: str) -> None:
    """By tensor; the hint names each argument that is missing, and no other."""
    changes, lacking = LACKING[name]
    request = Request(**SHAPE, **changes)
    assert unscaled(request) == lacking
    said = descale_hint(request) or ""
    assert [tensor for tensor in "qkv" if f"{tensor}_descale" in said] == list(lacking)


@pytest.mark.parametrize("name", LACKING)
@pytest.mark.parametrize("backend", [None, "fp8", "eager"])
def test_reasons_say_what_to_pass(name: str, backend: str | None) -> None:
    """Every reason about dtype, formats or scales has the hint where a descale is missing; where none is, none has."""
    changes, lacking = LACKING[name]
    request = Request(**SHAPE, **changes)
    decision = decide(request, device="h200", backend=backend, policy=Policy(numerics={"exact", "quantized"}))
    reasons = [reason for one in decision.candidates for reason in one.reasons if reason.code in AXES]
    assert {reason.hint for reason in reasons} <= {descale_hint(request)}
    of_dtype = [reason.message for reason in reasons if reason.code == "dtype"]
    if request.dtype != "bfloat16":
        assert of_dtype
        assert all(("without a descale" in message) == bool(lacking) for message in of_dtype)
    if lacking:
        assert reasons
        assert f"pass {lacking[0]}_descale" in decision.explain()


def test_a_request_that_lacks_nothing_is_not_told_of_one_that_did() -> None:
    """Records are kept by what they follow from: the hint is part of that."""
    for changes, lacking in (LACKING["plain e4m3"], LACKING["all there"], LACKING["plain e4m3"]):
        decision = decide(Request(**SHAPE, **changes), device="h200")
        messages = [reason.message for reason in decision.candidate("flex").reasons if reason.code == "dtype"]
        assert ["without a descale" in message for message in messages] == [bool(lacking)]


def test_a_dtype_that_holds_no_codes_lacks_no_descale() -> None:
    """Beside a cache without scales, float64 is refused for what it is."""
    request = Request(**SHAPE, dtype="float64", **{**KV, "k_granularity": "none"}, page_size=16)
    decision = decide(request, device="h200")
    messages = [reason.message for one in decision.candidates for reason in one.reasons if reason.code == "dtype"]
    assert messages
    assert not [message for message in messages if "without a descale" in message]
