"""`quantization_error`: agrees with plain attention, orders options as known, refuses what it cannot judge."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import attn_backends
from attn_backends import RequestError, quantization_error
from attn_backends.error_budget.formats import through
from attn_backends.error_budget.options import OPTIONS
from attn_backends.error_budget.samples import drawn

MASKS: list[dict[str, Any]] = [
    {}, {"causal": True}, {"causal": True, "window_left": 20}, {"window_left": 9, "window_right": 4}, {"softcap": 5.0},
    {"softmax_scale": 0.3},
]  # fmt: skip


def tensors(outliers: float = 0.0, seq: int = 256, **sizes: int) -> tuple[torch.Tensor, ...]:
    given = {"batch": 1, "heads": 4, "kv_heads": 2, "head_dim": 64, **sizes}
    return drawn(seq=seq, outliers=outliers, seed=3, **given)


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_it_is_the_error_of_attention_on_quantised_tensors(mask: dict[str, Any]) -> None:
    """The same number by the reference backend in float64 on tensors that went through the format."""
    q, k, v = (tensor.double() for tensor in tensors(seq=40))
    found = quantization_error(q, k, v, options=["v-only e4m3"], rows=40, **mask)["v-only e4m3"]
    stored = through(v[0].transpose(0, 1), "e4m3", "per_head").transpose(0, 1)[None]
    right = attn_backends.attention(q, k, v, backend="eager", **mask)
    got = attn_backends.attention(q, k, stored, backend="eager", **mask)
    assert found.relative == pytest.approx(float((got - right).norm() / right.norm()), rel=0.02)  # weights in bfloat16
    assert found.largest == pytest.approx(float((got - right).abs().max()), rel=0.1)


def test_more_queries_than_keys_leave_rows_without_keys() -> None:
    """They are 0 on both sides, and no NaN."""
    q, k, v = tensors(seq=64)
    found = quantization_error(q, k[:, :16], v[:, :16], causal=True)
    assert all(math.isfinite(one.relative) for one in found.options)
    assert found["16 bits"].relative < 0.01


def test_outliers_cost_per_tensor_scales_most_and_the_rotation_helps() -> None:
    """On numbers with outliers blocks beat one scale, and the rotation beats blocks by a good part."""
    found = quantization_error(*tensors(outliers=0.001, seq=1024))
    blocks, rotated, tensor = (found[f"fp8 {name}"].relative for name in ("blocks", "blocks + Hadamard", "per tensor"))
    assert rotated < 0.8 * blocks
    assert blocks < tensor
    assert found["16 bits"].relative < found["v-only int8"].relative < found["kv int8"].relative < rotated


def test_both_layouts_give_the_same() -> None:
    """bhsd is the other order of the same numbers."""
    q, k, v = tensors()
    other = quantization_error(*(tensor.transpose(1, 2) for tensor in (q, k, v)), layout="bhsd", causal=True)
    assert other == quantization_error(q, k, v, causal=True)


def test_every_head_and_sequence_is_judged() -> None:
    """Noise in one KV head of one sequence shows in that group's heads."""
    q, k, v = (torch.cat([tensor, tensor]) for tensor in tensors())
    v = v.clone()
    v[1, ::7, 1] *= 1000.0
    found = quantization_error(q, k, v, options=["v-only e4m3"])["v-only e4m3"]
    assert found.head in (2, 3)
    assert found.worst_head > found.relative / 2


def test_rows_are_a_sample_of_all() -> None:
    """Fewer rows, about the same number; more rows than there are is all of them."""
    q, k, v = tensors(seq=512)
    few, many = (quantization_error(q, k, v, rows=rows) for rows in (32, 10_000))
    assert (few.rows, many.rows, many.keys) == (32, 512, 512)
    for one in OPTIONS:
        assert few[one.name].relative == pytest.approx(many[one.name].relative, rel=0.25)


def test_bytes_are_of_what_is_stored() -> None:
    """K and V of their own widths, in their own formats."""
    q, k, v = tensors()
    found = quantization_error(q, k, v[..., :32])
    assert {one.kv_bytes for one in found.options if one.name.startswith(("fp8", "kv"))} == {96.0}
    assert found["v-only int8"].kv_bytes == 128 + 32
    assert found["16 bits"].kv_bytes == 192


def test_a_budget_names_the_cheapest_first() -> None:
    """Fewest bytes, then the smaller error; nothing that is over it."""
    found = quantization_error(*tensors(outliers=0.001))
    names = [one.name for one in found.within(found["kv e4m3"].relative)]
    assert names[0] == "kv int8"
    assert names[-1] == "16 bits"
    assert "fp8 per tensor" not in names
    assert found.within(1e-9) == ()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"layout": "thd"}, "layout.*bshd"),
        ({"options": ["int4"]}, "options.*int4.*kv int8"),
        ({"rows": 0}, "rows"),
        ({"k": torch.ones(1, 8, 3, 64), "v": torch.ones(1, 8, 3, 64)}, "k: .*divide"),
        ({"v": torch.ones(1, 9, 2, 64)}, "v: "),
        ({"q": torch.ones(1, 8, 64)}, "q: .*4 dims"),
        ({"q": torch.ones(1, 8, 4, 64, dtype=torch.int32)}, "q: .*floating"),
        ({"k": torch.full((1, 8, 2, 64), math.nan)}, "k: .*finite"),
        ({"v": torch.full((1, 8, 2, 64), 1e200, dtype=torch.float64)}, "v: .*float32's range"),
        ({"q": "q"}, "q: .*torch.Tensor"),
        ({"q": torch.ones(1, 8, 4, 64).to_sparse()}, "q: .*strided"),
        ({"q": torch.ones(1, 8, 4, 64, device="meta")}, "q: .*data"),
        ({"options": "kv int8"}, "options: .*list"),
        ({"rows": 2.5}, "rows: .*whole"),
        ({"seed": 2**70}, "seed: .*whole"),
        ({"causal": "no"}, "causal: .*true or false"),
        ({"window_left": "3"}, "window_left: .*whole"),
        ({"softcap": 0.0}, "softcap: .*> 0"),
        ({"softmax_scale": math.nan}, "softmax_scale: .*finite"),
        ({"softmax_scale": 1e300}, "softmax_scale: .*float32's range"),
    ],
    ids=[
        "layout",
        "option",
        "rows",
        "heads",
        "length",
        "dims",
        "dtype",
        "NaN",
        "beyond float32",
        "no tensor",
        "sparse",
        "no data",
        "options as one word",
        "half a row",
        "seed",
        "a word as flag",
        "a word as window",
        "softcap 0",
        "scale NaN",
        "scale beyond float32",
    ],
)
def test_what_it_cannot_judge_is_refused(changes: dict[str, Any], match: str) -> None:
    """With what was got and what is allowed."""
    given = {"q": torch.ones(1, 8, 4, 64), "k": torch.ones(1, 8, 2, 64), "v": torch.ones(1, 8, 2, 64)} | changes
    with pytest.raises(RequestError, match=match):
        quantization_error(given.pop("q"), given.pop("k"), given.pop("v"), **given)


def test_an_unknown_name_is_told_the_known_ones() -> None:
    """By the budget too."""
    with pytest.raises(KeyError, match="kv int8"):
        quantization_error(*tensors(seq=8))["int4"]
