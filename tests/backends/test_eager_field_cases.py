"""The field's own faults as cases: small calls whose answer can be computed by hand, straight through `Call`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from attn_backends.backends.eager.adapter import backward, run
from attn_backends.call import Call

INF, NAN = math.inf, math.nan
FORMATS = {
    "scaled-fp8-e4m3": torch.float8_e4m3fn,
    "scaled-fp8-e5m2": torch.float8_e5m2,
    "scaled-int8": torch.int8,
}

# rig uniform: q = 0, k = 1, v = key index + steps of head and batch. rig logits: q one-hot, k carries the logits, v the
# values. rig explicit: as written, zero columns appended. Results are per query row of the first batch entry and head.
CASES: dict[str, dict[str, Any]] = {
    "softcap-two-keys-cap-2": {
        "rig": "logits",
        "shape": {"seq_k": 2},
        "logits": [4.0, 0.0],
        "values": [1.0, 0.0],
        "expect": [0.873033999223],
        "expect_lse": [2.06383593878],
        "args": {"softcap": 2.0},
    },
    "softcap-saturated-cap-1": {
        "rig": "logits",
        "shape": {"seq_k": 2},
        "logits": [100.0, 0.0],
        "values": [1.0, 0.0],
        "expect": [0.73105857863],
        "expect_lse": [1.31326168752],
        "args": {"softcap": 1.0},
    },
    "softcap-then-causal-no-leak": {
        "rig": "logits",
        "shape": {"seq_q": 3, "seq_k": 3},
        "logits": [1.0, 2.0, 3.0],
        "values": [1.0, 2.0, 10000.0],
        "expect": [1.0, 1.55043623678, 3622.55285676],
        "expect_lse": [0.761594155956, 1.56107173743, 2.01073389179],
        "args": {"softcap": 1.0, "causal": True},
    },
    "window-left-1-causal-5": {
        "rig": "uniform",
        "shape": {"seq_q": 5, "seq_k": 5},
        "expect": [0.0, 0.5, 1.5, 2.5, 3.5],
        "expect_lse": [0.0, 0.69314718056, 0.69314718056, 0.69314718056, 0.69314718056],
        "args": {"causal": True, "window_left": 1},
    },
    "window-left-2-causal-5": {
        "rig": "uniform",
        "shape": {"seq_q": 5, "seq_k": 5},
        "expect": [0.0, 0.5, 1.0, 2.0, 3.0],
        "expect_lse": [0.0, 0.69314718056, 1.09861228867, 1.09861228867, 1.09861228867],
        "args": {"causal": True, "window_left": 2},
    },
    "window-decode-left-1-of-6": {
        "rig": "uniform",
        "shape": {"seq_q": 1, "seq_k": 6},
        "expect": [4.5],
        "expect_lse": [0.69314718056],
        "args": {"causal": True, "window_left": 1},
    },
    "window-not-multiple-of-tile-40": {
        "rig": "uniform",
        "shape": {"seq_q": 40, "seq_k": 40},
        "expect": [max(0, i - 9) / 2 + i / 2 for i in range(40)],
        "expect_lse": [math.log(min(i + 1, 10)) for i in range(40)],
        "args": {"causal": True, "window_left": 9},
    },
    "window-both-sides-bidirectional": {
        "rig": "uniform",
        "shape": {"seq_q": 5, "seq_k": 5},
        "expect": [0.5, 1.0, 2.0, 3.0, 3.5],
        "expect_lse": [0.69314718056, 1.09861228867, 1.09861228867, 1.09861228867, 0.69314718056],
        "args": {"window_left": 1, "window_right": 1},
    },
    "sink-one-key": {
        "rig": "logits",
        "shape": {"seq_k": 1},
        "logits": [0.0],
        "values": [1.0],
        "expect": [0.5],
        "expect_lse": [0.69314718056],
        "args": {"sinks": [0.0]},
    },
    "sink-ln4-three-keys": {
        "rig": "logits",
        "shape": {"seq_k": 3},
        "logits": [0.0, 0.0, 0.0],
        "values": [1.0, 1.0, 1.0],
        "expect": [0.428571428571],
        "expect_lse": [1.94591014906],
        "args": {"sinks": [1.38629436112]},
    },
    "sink-differs-per-head": {
        "rig": "logits",
        "shape": {"seq_k": 5, "q_heads": 4, "kv_heads": 2},
        "logits": [0.0, 0.0, 0.0, 0.0, 0.0],
        "values": [1.0, 1.0, 1.0, 1.0, 1.0],
        "expect_heads": [[0.833333333333], [0.5], [0.25], [1.0]],
        "expect_lse_heads": [[1.79175946923], [2.30258509299], [2.99573227355], [1.60943791243]],
        "args": {"sinks": [0.0, 1.60943791243, 2.7080502011, -INF]},
    },
    "alibi-decode-slope-half": {
        "rig": "uniform",
        "shape": {"seq_q": 1, "seq_k": 3},
        "expect": [1.32015666783],
        "expect_lse": [0.680269670642],
        "args": {"causal": True, "alibi_slopes": [0.5]},
    },
    "alibi-cross-more-keys-than-queries": {
        "rig": "uniform",
        "shape": {"seq_q": 2, "seq_k": 4},
        "expect": [1.71492608681, 2.08457648846],
        "expect_lse": [0.94815396836, 0.787338671698],
        "args": {"alibi_slopes": [0.5]},
    },
    "causal-2x5-bottom-right": {
        "rig": "uniform",
        "shape": {"seq_q": 2, "seq_k": 5},
        "expect": [1.5, 2.0],
        "expect_lse": [1.38629436112, 1.60943791243],
        "args": {"causal": True},
    },
    "causal-2x5-top-left": {
        "rig": "uniform",
        "shape": {"seq_q": 2, "seq_k": 5},
        "expect": [0.0, 0.5],
        "expect_lse": [0.0, 0.69314718056],
        "args": {"causal": True, "causal_alignment": "top_left"},
    },
    "causal-5x2-bottom-right-empty-rows": {
        "rig": "uniform",
        "shape": {"seq_q": 5, "seq_k": 2},
        "exact_zero_rows": [0, 1, 2],
        "expect": [0.0, 0.0, 0.0, 0.0, 0.5],
        "expect_lse": [-INF, -INF, -INF, 0.0, 0.69314718056],
        "args": {"causal": True},
    },
    "causal-5x2-top-left": {
        "rig": "uniform",
        "shape": {"seq_q": 5, "seq_k": 2},
        "expect": [0.0, 0.5, 0.5, 0.5, 0.5],
        "expect_lse": [0.0, 0.69314718056, 0.69314718056, 0.69314718056, 0.69314718056],
        "args": {"causal": True, "causal_alignment": "top_left"},
    },
    "causal-decode-1x5": {
        "rig": "uniform",
        "shape": {"seq_q": 1, "seq_k": 5},
        "expect": [2.0],
        "expect_lse": [1.60943791243],
        "args": {"causal": True},
    },
    "cross-attention-2x5-not-causal": {
        "rig": "uniform",
        "shape": {"seq_q": 2, "seq_k": 5},
        "expect": [2.0, 2.0],
        "expect_lse": [1.60943791243, 1.60943791243],
        "args": {},
    },
    "mask-bool-one-empty-row": {
        "rig": "uniform",
        "shape": {"seq_q": 3, "seq_k": 4},
        "exact_zero_rows": [1],
        "expect": [0.5, 0.0, 3.0],
        "expect_lse": [0.69314718056, -INF, 0.0],
        "args": {"attn_mask": [[True, True, False, False], [False, False, False, False], [False, False, False, True]]},
    },
    "mask-minus-inf-one-empty-row": {
        "rig": "uniform",
        "shape": {"seq_q": 2, "seq_k": 3},
        "exact_zero_rows": [0],
        "expect": [0.0, 1.0],
        "expect_lse": [-INF, 0.69314718056],
        "args": {"attn_mask": [[-INF, -INF, -INF], [0.0, -INF, 0.0]]},
    },
    "mask-lowest-finite-bias-is-mean": {
        "rig": "uniform",
        "shape": {"seq_q": 1, "seq_k": 4},
        "mask_finfo_min": True,
        "expect": [1.5],
        "args": {"attn_mask": [[-1.0, -1.0, -1.0, -1.0]]},
    },
    "mask-and-causal-intersect-to-empty": {
        "rig": "uniform",
        "shape": {"seq_q": 3, "seq_k": 3},
        "exact_zero_rows": [0],
        "expect": [0.0, 0.0, 1.0],
        "expect_lse": [-INF, 0.0, 1.09861228867],
        "args": {"causal": True, "attn_mask": [[False, True, True], [True, False, True], [True, True, True]]},
    },
    "mask-float-bias-ln3": {
        "rig": "logits",
        "shape": {"seq_k": 2},
        "logits": [0.0, 0.0],
        "values": [1.0, 0.0],
        "expect": [0.75],
        "expect_lse": [1.38629436112],
        "args": {"attn_mask": [[1.09861228867, 0.0]]},
    },
    "logits-far-below-a-finite-sentinel": {
        "rig": "logits",
        "shape": {"seq_k": 4},
        "logits": [-60000.0, -60000.0, -60000.0, -60000.0],
        "values": [0.0, 1.0, 2.0, 3.0],
        "expect": [1.5],
        "args": {},
    },
    "gqa-4-over-2": {
        "rig": "uniform",
        "shape": {"seq_k": 3, "q_heads": 4, "kv_heads": 2},
        "v_head_step": 10.0,
        "expect_heads": [[1.0], [1.0], [11.0], [11.0]],
        "args": {},
    },
    "scale-default-head-dim-80": {
        "rig": "logits",
        "shape": {"seq_k": 2, "head_dim": 80},
        "logits": [1.0, 0.0],
        "q0": 8.0,
        "default_scale": True,
        "values": [1.0, 0.0],
        "expect": [0.709802943757],
        "expect_lse": [1.23719508247],
        "args": {},
    },
    "scale-zero-is-zero": {
        "rig": "logits",
        "shape": {"seq_k": 2},
        "logits": [4.0, 0.0],
        "values": [1.0, 0.0],
        "expect": [0.5],
        "expect_lse": [0.69314718056],
        "args": {"softmax_scale": 0.0},
    },
    "head-dim-192-over-128": {
        "rig": "logits",
        "shape": {"seq_q": 3, "seq_k": 3, "head_dim": 192, "head_dim_v": 128},
        "channel": 191,
        "logits": [0.0, 0.69314718056, 1.60943791243],
        "values": [0.0, 3.0, 4.0],
        "expect": [0.0, 2.0, 3.25],
        "expect_lse": [0.0, 1.09861228867, 2.07944154168],
        "args": {"causal": True},
    },
    "k-descale-quarter-fp8": {
        "rig": "logits",
        "shape": {"seq_k": 2},
        "logits": [4.0, 0.0],
        "values": [1.0, 0.0],
        "k_format": "scaled-fp8-e4m3",
        "v_format": "scaled-fp8-e4m3",
        "expect": [0.73105857863],
        "expect_lse": [1.31326168752],
        "args": {"k_descale": 0.25, "v_descale": 1.0},
    },
    "v-descale-half-fp8": {
        "rig": "uniform",
        "shape": {"seq_k": 5},
        "k_format": "scaled-fp8-e4m3",
        "v_format": "scaled-fp8-e4m3",
        "expect": [1.0],
        "args": {"k_descale": 1.0, "v_descale": 0.5},
    },
    "varlen-zero-length-both-sides": {
        "rig": "uniform",
        "shape": {"batch": 4, "seq_q": 1, "seq_k": 5},
        "expect": [1.0, 2.0],
        "expect_lse": [1.09861228867, 1.60943791243],
        "args": {
            "layout": "thd",
            "cu_seqlens_q": [0, 0, 1, 1, 2],
            "cu_seqlens_k": [0, 0, 3, 3, 8],
            "max_seqlen_q": 1,
            "max_seqlen_k": 5,
        },
    },
    "varlen-query-without-keys": {
        "rig": "uniform",
        "shape": {"batch": 2, "seq_q": 1, "seq_k": 3},
        "exact_zero_rows": [0],
        "expect": [0.0, 1.0],
        "expect_lse": [-INF, 1.09861228867],
        "args": {
            "layout": "thd",
            "cu_seqlens_q": [0, 1, 2],
            "cu_seqlens_k": [0, 0, 3],
            "max_seqlen_q": 1,
            "max_seqlen_k": 3,
        },
    },
    "varlen-causal-2-and-3": {
        "rig": "uniform",
        "shape": {"batch": 2, "seq_q": 3, "seq_k": 3},
        "expect": [0.0, 0.5, 0.0, 0.5, 1.0],
        "expect_lse": [0.0, 0.69314718056, 0.0, 0.69314718056, 1.09861228867],
        "args": {
            "layout": "thd",
            "causal": True,
            "cu_seqlens_q": [0, 2, 5],
            "cu_seqlens_k": [0, 2, 5],
            "max_seqlen_q": 3,
            "max_seqlen_k": 3,
        },
    },
    "paged-decode-partly-filled-page": {
        "rig": "uniform",
        "shape": {"seq_k": 6},
        "paged": {"page_size": 16, "num_pages": 3, "poison": NAN},
        "expect": [2.5],
        "expect_lse": [1.79175946923],
        "args": {"seq_lens": [6], "block_table": [[1]]},
    },
    "paged-lengths-around-a-page": {
        "rig": "uniform",
        "shape": {"batch": 4, "seq_k": 17},
        "paged": {"page_size": 16, "num_pages": 9, "poison": NAN},
        "expect_batches": [[0.0], [7.0], [7.5], [8.0]],
        "expect_lse_batches": [[0.0], [2.7080502011], [2.77258872224], [2.83321334406]],
        "args": {"causal": True, "seq_lens": [1, 15, 16, 17], "block_table": [[7, 2], [0, 2], [5, 2], [3, 8]]},
    },
    "paged-shuffled-pages-of-4": {
        "rig": "uniform",
        "shape": {"batch": 3, "seq_k": 7},
        "v_batch_step": 20.0,
        "paged": {"page_size": 4, "num_pages": 8, "poison": NAN},
        "expect_batches": [[2.0], [23.0], [41.0]],
        "args": {"seq_lens": [5, 7, 3], "block_table": [[6, 1], [3, 0], [5, 7]]},
    },
    "paged-table-tail-is-garbage": {
        "rig": "uniform",
        "shape": {"batch": 2, "seq_k": 8},
        "paged": {"page_size": 4, "num_pages": 4, "poison": NAN},
        "expect_batches": [[1.5], [3.5]],
        "args": {"causal": True, "seq_lens": [4, 8], "block_table": [[2, -1, -1, -1], [1, 3, 2147483647, -7]]},
    },
    "lse-natural-log-four-keys": {
        "rig": "uniform",
        "shape": {"seq_k": 4},
        "expect": [1.5],
        "expect_lse": [1.38629436112],
        "args": {},
    },
    "backward-dv-causal-uniform": {
        "rig": "uniform",
        "shape": {"seq_q": 3, "seq_k": 3},
        "backward": True,
        "expect": [0.0, 0.5, 1.0],
        "expect_dv": [1.83333333333, 0.833333333333, 0.333333333333],
        "args": {"causal": True},
    },
    "backward-empty-rows-5x2": {
        "rig": "logits",
        "shape": {"seq_q": 5, "seq_k": 2},
        "logits": [0.0, 0.0],
        "values": [1.0, 2.0],
        "backward": True,
        "exact_zero_rows": [0, 1, 2],
        "expect": [0.0, 0.0, 0.0, 1.0, 1.5],
        "expect_dv": [1.5, 0.5],
        "expect_dq": [0.0, 0.0, 0.0, 0.0, 0.0],
        "args": {"causal": True},
    },
    "backward-very-negative-lse-bool-mask": {
        "rig": "logits",
        "shape": {"seq_q": 4, "seq_k": 4},
        "logits": [-120.0, -120.0, -120.0, -120.0],
        "values": [0.0, 1.0, 2.0, 3.0],
        "backward": True,
        "expect": [0.0, 0.5, 1.0, 1.5],
        "expect_lse": [-120.0, -119.306852819, -118.901387711, -118.613705639],
        "expect_dv": [2.08333333333, 1.08333333333, 0.583333333333, 0.25],
        "args": {
            "attn_mask": [
                [True, False, False, False],
                [True, True, False, False],
                [True, True, True, False],
                [True, True, True, True],
            ]
        },
    },
    "explicit-2x3": {
        "rig": "explicit",
        "q": [[[[1.0, 2.0]], [[-1.0, 0.5]]]],
        "k": [[[[0.5, 0.0]], [[0.0, 1.0]], [[1.0, 1.0]]]],
        "v": [[[[1.0, 0.0]], [[0.0, 1.0]], [[2.0, -1.0]]]],
        "pad_head_dim_to": 64,
        "expect": [1.20785101458, 0.822205857184],
        "expect_rows": [[1.20785101458, -0.207851014581], [0.822205857184, 0.177794142816]],
        "expect_lse": [2.13818160241, 1.04437676942],
        "args": {"softmax_scale": 0.5},
    },
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_field_case(name: str, dtype: torch.dtype) -> None:
    """Output, LSE and gradients are the numbers that a hand computes."""
    case = CASES[name]
    call = build(case, dtype)
    run(call)
    tolerance = {torch.float16: 3e-3, torch.bfloat16: 2e-2}.get(dtype, 2e-5)
    out, lse = logical(call)
    for key, got in (
        ("expect", out[0, 0]),
        ("expect_heads", out[0]),
        ("expect_batches", out[:, 0]),
        ("expect_lse", lse[0, 0]),
        ("expect_lse_heads", lse[0]),
        ("expect_lse_batches", lse[:, 0]),
    ):
        if key in case:
            close(got, case[key], tolerance, every_column="lse" not in key and case["rig"] != "explicit")
    for row, want in enumerate(case.get("expect_rows", ())):
        close(out[0, 0, row, : len(want)], want, tolerance, every_column=False)
    for row in case.get("exact_zero_rows", ()):
        assert not out[0, 0, row].any()
    if case.get("backward"):
        check_gradients(case, call, tolerance)


def check_gradients(case: dict[str, Any], call: Call, tolerance: float) -> None:
    grads = backward(call, torch.ones_like(call.out), None)
    for name in ("q", "k", "v"):
        grad = getattr(grads, name)
        assert bool(grad.isfinite().all())
        if f"expect_d{name}" in case:
            columns = slice(None) if name == "v" else slice(0, 1)
            close(grad[0, :, 0, columns], case[f"expect_d{name}"], tolerance, every_column=True)


def close(got: torch.Tensor, want: list[Any], tolerance: float, *, every_column: bool) -> None:
    expected = torch.tensor(want, dtype=torch.float64)
    if every_column:
        expected = expected.unsqueeze(-1).expand(got.shape)
    elif got.dim() > expected.dim():
        got = got[..., 0]
    torch.testing.assert_close(got.to(torch.float64), expected, atol=tolerance, rtol=tolerance)


def logical(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Out [B | 1, Hq, rows, Dv] and LSE [B | 1, Hq, rows]; packed rows count as one batch entry."""
    assert call.lse is not None
    if call.layout == "thd":
        return call.out.transpose(0, 1)[None], call.lse[None]
    return call.out.transpose(1, 2), call.lse


def build(case: dict[str, Any], dtype: torch.dtype) -> Call:
    q, k, v = (tensor.to(dtype) for tensor in rig(case))
    args = {name: argument(name, value, dtype) for name, value in case["args"].items()}
    if case.get("mask_finfo_min"):
        args["attn_mask"] = torch.full_like(args["attn_mask"], torch.finfo(dtype).min)
    for name, tensor in (("k", k), ("v", v)):
        if f"{name}_format" in case:
            stored = tensor.to(FORMATS[case[f"{name}_format"]])
            k, v = (stored, v) if name == "k" else (k, stored)
            args |= {f"{name}_format": case[f"{name}_format"], f"{name}_granularity": "per_tensor"}
    if case["args"].get("layout") == "thd":
        q, k, v = packed(q, args["cu_seqlens_q"]), packed(k, args["cu_seqlens_k"]), packed(v, args["cu_seqlens_k"])
    if "paged" in case:
        k, v = paged(k, case["paged"], args), paged(v, case["paged"], args)
    scale = q.shape[-1] ** -0.5 if case["rig"] == "uniform" or case.get("default_scale") else 1.0
    rows = (q.shape[1], q.shape[0]) if q.dim() == 3 else (q.shape[0], q.shape[2], q.shape[1])
    return Call(
        q=q, k=k, v=v, out=torch.full((*q.shape[:-1], v.shape[-1]), NAN, dtype=dtype),
        lse=torch.full(rows, NAN), **{"softmax_scale": scale, **args},
    )  # fmt: skip


def rig(case: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logical q [B, Sq, Hq, D], k [B, Sk, Hkv, D], v [B, Sk, Hkv, Dv]."""
    if case["rig"] == "explicit":
        q, k, v = (torch.tensor(case[name]) for name in "qkv")
        pad = case["pad_head_dim_to"] - q.shape[-1]
        return tuple(torch.nn.functional.pad(x, (0, pad)) for x in (q, k, v))  # type: ignore[return-value]
    shape = {"batch": 1, "seq_q": 1, "seq_k": 1, "q_heads": 1, "kv_heads": 1, "head_dim": 64, **case["shape"]}
    b, keys, heads = shape["batch"], shape["seq_k"], shape["kv_heads"]
    q = torch.zeros(b, shape["seq_q"], shape["q_heads"], shape["head_dim"])
    k = torch.ones(b, keys, heads, shape["head_dim"])
    values = torch.arange(float(keys))
    if case["rig"] == "logits":
        k.zero_()
        channel = case.get("channel", 0)
        q[..., channel] = case.get("q0", 1.0)
        k[..., channel] = torch.tensor(case["logits"])[None, :, None]
        values = torch.tensor(case["values"])
    v = values[None, :, None] + case.get("v_head_step", 0.0) * torch.arange(heads)
    v = v + case.get("v_batch_step", 0.0) * torch.arange(b)[:, None, None]
    return q, k, v[..., None].expand(b, keys, heads, shape.get("head_dim_v", shape["head_dim"]))


def argument(name: str, value: Any, dtype: torch.dtype) -> Any:
    """An argument as the host resolves it."""
    if name in ("k_descale", "v_descale"):
        return torch.tensor(value)
    if not isinstance(value, list):
        return value
    if name == "attn_mask":
        mask = torch.tensor(value)
        return mask if mask.dtype == torch.bool else mask.to(dtype)
    return torch.tensor(value, dtype=torch.float32 if name in ("sinks", "alibi_slopes") else torch.int32)


def packed(rows: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    lengths = starts.diff().tolist()
    return torch.cat([rows[b, :length] for b, length in enumerate(lengths)])


def paged(rows: torch.Tensor, pool: dict[str, Any], args: dict[str, Any]) -> torch.Tensor:
    page = pool["page_size"]
    cache = torch.full((pool["num_pages"], page, *rows.shape[2:]), pool.get("poison", 0.0), dtype=rows.dtype)
    for b, length in enumerate(args["seq_lens"].tolist()):
        for position in range(length):
            cache[args["block_table"][b, position // page], position % page] = rows[b, position]
    return cache
