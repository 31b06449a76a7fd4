"""The table of cases: every feature that a torch backend may declare, alone and where features meet."""

from __future__ import annotations

from tests.backends.sdpa_calls import Case

SHAPES = (
    Case("square"),
    Case("one-token", batch=1, seq_q=1, seq_k=1, q_heads=1, kv_heads=1, head_dim=8),
    Case("decode", seq_q=1, seq_k=33),
    Case("more-keys", seq_q=5, seq_k=40),
    Case("more-queries", seq_q=40, seq_k=5),
    Case("longer-than-a-tile", batch=1, seq_q=300, seq_k=520, head_dim=32),
    Case("gqa-4-over-2", q_heads=4, kv_heads=2),
    Case("gqa-7", q_heads=7, kv_heads=1, seq_q=9, seq_k=20),
    Case("head-dim-13", head_dim=13),
    Case("head-dim-72", head_dim=72),
    Case("head-dim-1", head_dim=1),
    Case("v-wider", head_dim=16, head_dim_v=24),
    Case("v-narrower", head_dim=24, head_dim_v=5),
    Case("head-dim-192-128", head_dim=192, head_dim_v=128, q_heads=1, kv_heads=1),
    Case("head-dim-256", head_dim=256, q_heads=1, kv_heads=1),
    Case("bhsd", layout="bhsd"),
    Case("no-keys", seq_k=0),
    Case("no-queries", seq_q=0),
)

SCALES = (
    Case("scale-custom", scale=0.7),
    Case("scale-zero", scale=0.0),
    Case("scale-negative", scale=-0.5),
    Case("scale-zero-causal", scale=0.0, causal=True),
    Case("scale-negative-causal", scale=-0.5, causal=True, seq_q=9, seq_k=20),
)

CAUSAL = (
    Case("causal", causal=True),
    Case("causal-5x12", causal=True, seq_q=5, seq_k=12),
    Case("causal-12x5", causal=True, seq_q=12, seq_k=5),
    Case("causal-5x12-top-left", causal=True, seq_q=5, seq_k=12, alignment="top_left"),
    Case("causal-12x5-top-left", causal=True, seq_q=12, seq_k=5, alignment="top_left"),
    Case("causal-decode", causal=True, seq_q=1, seq_k=33),
    Case("causal-decode-top-left", causal=True, seq_q=1, seq_k=33, alignment="top_left"),
    Case("causal-tiles", causal=True, batch=1, seq_q=200, seq_k=330, head_dim=32, q_heads=4, kv_heads=2),
    Case("causal-no-keys", causal=True, seq_q=3, seq_k=0),
    Case("causal-gqa-bhsd", causal=True, q_heads=6, kv_heads=2, layout="bhsd"),
)

WINDOWS = (
    Case("window-left-3-causal", causal=True, left=3),
    Case("window-left-0-causal", causal=True, left=0),
    Case("window-left-2-causal-5x12", causal=True, left=2, seq_q=5, seq_k=12),
    Case("window-left-2-causal-12x5", causal=True, left=2, seq_q=12, seq_k=5),
    Case("window-left-2-causal-12x5-top-left", causal=True, left=2, seq_q=12, seq_k=5, alignment="top_left"),
    Case("window-left-2-causal-5x12-top-left", causal=True, left=2, seq_q=5, seq_k=12, alignment="top_left"),
    Case("window-left-only", left=2, seq_q=5, seq_k=12),
    Case("window-right-only", right=2, seq_q=9, seq_k=12),
    Case("window-right-and-causal", right=2, causal=True),
    Case("window-both", left=1, right=2),
    Case("window-both-3x12-top-left", left=1, right=2, seq_q=3, seq_k=12, alignment="top_left"),
    Case("window-both-12x3", left=1, right=2, seq_q=12, seq_k=3),
    Case("window-decode", causal=True, left=4, seq_q=1, seq_k=33),
    Case("window-tiles", causal=True, left=70, batch=1, seq_q=200, seq_k=330, head_dim=32),
)

MASKED = (
    Case("mask-bool", mask="bool"),
    Case("mask-bool-2d-causal", mask="bool_2d", causal=True),
    Case("mask-bool-2d-12x5-causal", mask="bool_2d", causal=True, seq_q=12, seq_k=5),
    Case("mask-bool-2d-5x12-top-left", mask="bool_2d", causal=True, seq_q=5, seq_k=12, alignment="top_left"),
    Case("mask-empty-rows", mask="bool_empty_rows", seq_q=7, seq_k=12),
    Case("mask-all-hidden", mask="bool_all_hidden"),
    Case("mask-padding", mask="bool_padding", q_heads=4),
    Case("mask-per-head-gqa", mask="bool_per_head", q_heads=4),
    Case("mask-rows", mask="bool_rows"),
    Case("mask-window", mask="bool_2d", causal=True, left=3),
    Case("mask-negative-scale", mask="bool_empty_rows", scale=-0.5),
    Case("mask-zero-scale", mask="bool_empty_rows", scale=0.0),
    Case("mask-tiles", mask="bool", batch=1, seq_q=70, seq_k=530, head_dim=32, q_heads=2, kv_heads=1),
)

BIASED = (
    Case("bias", mask="bias"),
    Case("bias-3d-causal", mask="bias_3d", causal=True, seq_q=9, seq_k=12),
    Case("bias-float32", mask="bias_float32", q_heads=4),
    Case("bias-holes", mask="bias_holes"),
    Case("bias-empty-rows", mask="bias_empty_rows", q_heads=4),
    Case("bias-empty-rows-causal-12x5", mask="bias_empty_rows", seq_q=12, seq_k=5, causal=True),
    Case("bias-lowest", mask="bias_lowest"),
    Case("bias-lowest-float32", mask="bias_lowest_float32"),
)

LENGTHS = (
    Case("lengths", seq_lens=(17, 3)),
    Case("lengths-zero", seq_lens=(0, 9)),
    Case("lengths-causal", seq_lens=(12, 4), causal=True, seq_q=7),
    Case("lengths-causal-top-left", seq_lens=(12, 4), causal=True, seq_q=7, alignment="top_left"),
    Case("lengths-window", seq_lens=(12, 5), causal=True, left=2, seq_q=7),
    Case("lengths-decode", seq_lens=(33, 8), causal=True, seq_q=1, seq_k=33, q_heads=4),
    Case("lengths-mask", seq_lens=(12, 5), mask="bool_2d"),
)

SCORES = (
    Case("softcap", softcap=2.0, causal=True),
    Case("alibi", alibi=True, causal=True, seq_q=9, seq_k=20),
    Case("alibi-top-left", alibi=True, seq_q=9, seq_k=20, alignment="top_left"),
    Case("softcap-window-gqa", softcap=5.0, causal=True, left=6, q_heads=4, kv_heads=2, seq_k=200, seq_q=150),
)

WIDE = tuple(
    Case(f"head-dim-{qk}-{v}", head_dim=qk, head_dim_v=v, q_heads=2, kv_heads=1, batch=1, causal=True)
    for qk, v in ((513, 40), (40, 577), (1024, 1024), (1500, 8))
)

OUTPUTS = tuple(
    Case(f"out-{dtype}", out_dtype=dtype, causal=True, seq_q=9, seq_k=9, q_heads=4)
    for dtype in ("float16", "bfloat16", "float32", "float64")
)

FORWARD = (*SHAPES, *SCALES, *CAUSAL, *WINDOWS, *MASKED, *BIASED, *LENGTHS, *SCORES, *WIDE, *OUTPUTS)


def _gradients(case: Case) -> list[Case]:
    """With gradients: of out alone, and through the LSE and the bias too."""
    plain = case.but(id=f"{case.id}-grads", grads=True, lse=False)
    full = plain.but(id=f"{case.id}-grads-lse", lse=True, grad_bias=(case.mask or "").startswith("bias"))
    return [plain, full]


BACKWARD = tuple(with_grads for case in FORWARD for with_grads in _gradients(case))
