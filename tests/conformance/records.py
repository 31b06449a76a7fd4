"""Made-up runs: what reports, certificates and comparisons are tested with, without running a kernel."""

from __future__ import annotations

from typing import Any

from attn_backends.conformance.case import Case
from attn_backends.conformance.outcome import Outcome, Result
from attn_backends.conformance.record import RunRecord

NASTY = "<script>alert(1)</script> | `code` \x1b[31mred\x1b[0m \x00 &amp; ]]> \ud800"
CPU = {"kind": "cpu", "name": "cpu"}
H200 = {"kind": "cuda", "name": "NVIDIA H200", "arch": [9, 0]}
STRONG = {"mutants": 61, "killed": 61, "controls": 8, "controls_failed": 0}
PLAIN = Case(seq_q=17, seq_k=33)


def result(outcome: str = "PASS", case: Case = PLAIN, check: str = "value", **more: Any) -> Result:
    """One result; `id` beats check and case."""
    given = {"id": f"{check}/{case.id}", "clauses": ("SCORE-1",), "seconds": 0.01, **more}
    return Result(outcome=Outcome(outcome), **given)


def record(*results: Result, **more: Any) -> RunRecord:
    """A run of `full` on the CPU with one pass, unless told otherwise."""
    given: dict[str, Any] = {
        "backend": "my_fa", "version": "0.1.0", "digest": "d" * 64, "numerics": "exact", "level": "full", "spec": "1.0",
        "suite": "0.1.0", "device": CPU, "environment": {"torch": "2.13.0"}, "volume": {"dtype": "{float32}"},
        "results": results or (result(),), "self_test": STRONG, "seconds": 12.5, "started": "2026-01-02T03:04:05Z",
        **more,
    }  # fmt: skip
    return RunRecord(**given)


def wide_record() -> RunRecord:
    """A failing run with every outcome, many axes and hostile texts: what the pictures are looked at with."""
    results = []
    for number, dtype in enumerate(("float32", "bfloat16", "float16")):
        for head_dim in (16, 40, 64, 80, 96, 128, 192, 256):
            for feature in _features():
                case = PLAIN.replace(dtype=dtype, head_dim=head_dim, head_dim_v=head_dim, seed=number, **feature)
                ratios = {"element": 0.21 + 0.002 * head_dim, "row": 0.4, "lse": 0.01}
                results.append(result("PASS", case, clauses=_clauses(feature), ratios=ratios))
    results += [
        result("REFUSED", PLAIN.replace(sinks=True, seed=seed), "refuse", clauses=("REFUSE-1",)) for seed in range(9)
    ]
    results += [
        result(
            "NOT_RUN",
            PLAIN.replace(
                dtype="bfloat16",
                k_format="scaled-fp8-e4m3",
                v_format="scaled-fp8-e4m3",
                granularity="per_head",
                seed=seed,
            ),
            clauses=("QUANT-1",),
            message="needs sm_100",
        )
        for seed in range(12)
    ]
    results += [
        result("SILENT_WRONG", PLAIN.replace(alibi=True), "refuse", clauses=("REFUSE-1", "ALIBI-1"), message="alibi is not declared, yet the call was accepted and the slopes were dropped: row rms(e) 14.2 times the bound\n" + NASTY, ratios={"row": 14.2, "element": 33.0}),
        result("FAIL", PLAIN.replace(causal=True, seq_q=129, seq_k=65, dtype="float16", softcap=30.0), clauses=("CAUSAL-1", "MASK-3"), message="rows 0..63 see nothing and should be 0, got the mean of v", ratios={"row": 2.4}),
        result("FAIL", PLAIN.replace(causal=True, left=16, dtype="bfloat16"), clauses=("WINDOW-1",), message="window_left=16 hides the key 16 tokens back", ratios={"row": 1.7}),
        result("OVERCLAIM", PLAIN.replace(page_size=16, kv_layout="HND"), clauses=("PAGED-3", "DECLARE-1"), message="RuntimeError: stride mismatch"),
        result("CRASH", PLAIN.replace(head_dim=512, head_dim_v=512), clauses=("HEADDIM-1",), message="killed by signal 6 (SIGABRT)"),
        result("TIMEOUT", PLAIN.replace(seq_q=1, seq_k=4096, phase="decode"), clauses=("DECLARE-1",), message="nothing for 60 s"),
        result("UNDERCLAIM", PLAIN.replace(scale=0.3), "refuse", clauses=("DECLARE-2",), message="scale custom works and is not declared"),
    ]  # fmt: skip
    return record(
        *results, device=H200, volume=_volume(), notes=("error: gap paged-hnd has expired (2025-01-01)", "field_cases: 61 of 61 answered"),
        gaps=({"id": "paged-hnd", "reason": "HND pages are read as NHD", "evidence": "https://example.org/1", "expires": "2025-01-01"},),
    )  # fmt: skip


def _features() -> list[dict[str, Any]]:
    return [
        {}, {"causal": True}, {"causal": True, "top_left": True, "seq_q": 65, "seq_k": 33}, {"causal": True, "left": 16},
        {"softcap": 30.0}, {"mask": "bool"}, {"mask": "bias"}, {"layout": "thd", "ragged": True}, {"layout": "bhsd"},
        {"page_size": 16}, {"page_size": 64}, {"grads": True}, {"kv_heads": 1}, {"kv_heads": 4}, {"memory": "fused"},
        {"lse": False}, {"deterministic": True}, {"values": "large"}, {"values": "offset"},
    ]  # fmt: skip


def _clauses(feature: dict[str, Any]) -> tuple[str, ...]:
    known = {
        "causal": "CAUSAL-1",
        "softcap": "SOFTCAP-1",
        "mask": "MASK-1",
        "page_size": "PAGED-1",
        "grads": "BACKWARD-1",
        "ragged": "VARLEN-1",
    }
    return ("SCORE-1", "DECLARE-1", *(clause for name, clause in known.items() if name in feature))


def _volume() -> dict[str, str]:
    return {
        "device": "{cuda}", "arch": "{min 8.0, max 9.0}", "dtype": "{float16, bfloat16, float32}", "kv_format": "{dense, scaled-fp8-e4m3}",
        "layout": "{bshd, bhsd, thd}", "head_dim": "{multiple_of 8, max 256}", "gqa_ratio": "any", "seq_len": "{min 0, max 65536}",
        "causal": "{false, true}", "window": "{none, left}", "softcap": "{false, true}", "page_size": "{16, 64}", "lse": "{false, true}",
        "backward": "{false, true}", "index_width": "{32, 64}", "strides": "{any}",
    }  # fmt: skip
