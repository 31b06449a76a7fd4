"""Every feature in every layout and dtype, against the scalar oracle."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from attn_backends.block_mask import BlockMask
from attn_backends.call import Call
from tests.backends.eager_calls import LAYOUTS, Scene, call_of, results, scene
from tests.backends.eager_oracle import Rules, attention

INF = math.inf
SEQ_Q, SEQ_K = [5, 5, 5], [7, 3, 0]
PACKED_Q, PACKED_K = [5, 0, 3, 2], [7, 4, 0, 6]
HEADS = 4


def random_bool(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(3)) < 0.6


def bias(*shape: int) -> torch.Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(4))
    return values.masked_fill(~random_bool(*shape), -INF)


def features(batch: int, seq_q: int, seq_k: int) -> dict[str, dict[str, Any]]:
    """Arguments by a readable name; masks for this batch and these longest lengths."""
    slopes = torch.tensor([0.5, 0.25, 1.0, 0.0])
    blocks = random_bool(batch, HEADS, math.ceil(seq_q / 2), math.ceil(seq_k / 3))
    return {
        "plain": {},
        "causal": {"causal": True},
        "causal-top-left": {"causal": True, "causal_alignment": "top_left"},
        "window-left": {"causal": True, "window_left": 2},
        "window-zero": {"causal": True, "window_left": 0},
        "window-both-sides": {"window_left": 1, "window_right": 2},
        "window-right-only-top-left": {"window_right": 1, "causal_alignment": "top_left"},
        "softcap": {"softcap": 0.7},
        "scale-zero": {"softmax_scale": 0.0},
        "scale-negative": {"softmax_scale": -1.3},
        "sinks": {"sinks": torch.tensor([0.0, 1.5, -INF, -2.0]), "causal": True},
        "alibi": {"alibi_slopes": slopes},
        "alibi-per-sequence-top-left": {
            "alibi_slopes": torch.outer(torch.arange(1.0, batch + 1), slopes),
            "causal_alignment": "top_left",
        },
        "bool-mask-2d": {"attn_mask": random_bool(seq_q, seq_k)},
        "bool-mask-3d": {"attn_mask": random_bool(HEADS, 1, seq_k), "causal": True},
        "bool-mask-4d": {"attn_mask": random_bool(batch, 1, seq_q, seq_k)},
        "float-mask-2d": {"attn_mask": bias(seq_q, 1)},
        "float-mask-4d": {"attn_mask": bias(batch, HEADS, seq_q, seq_k), "softcap": 2.0},
        "block-mask": {"block_mask": BlockMask(blocks, (2, 3))},
        "block-mask-refined": {"block_mask": BlockMask(blocks[:1, :1], (2, 3), random_bool(seq_q, seq_k))},
        "dropout": {"dropout_p": 0.4, "dropout_seed": -(2**40) - 12345},
        "everything": {
            "causal": True, "window_left": 4, "softcap": 1.5, "sinks": torch.tensor([0.3, -1.0, 0.0, 2.0]),
            "alibi_slopes": slopes, "attn_mask": bias(1, HEADS, seq_q, seq_k), "softmax_scale": 0.9,
            "block_mask": BlockMask(random_bool(1, 1, math.ceil(seq_q / 3), math.ceil(seq_k / 3)), 3),
            "dropout_p": 0.2, "dropout_seed": 2**63 + 11,
        },
    }  # fmt: skip


NAMES = tuple(features(1, 1, 1))


def rules_of(call: Call, b: int, seq_q: int, seq_k: int) -> Rules:
    """The oracle's rules for one sequence of a call, read from its arguments by plain indexing."""

    def cut(mask: torch.Tensor) -> Any:
        full = mask.expand(len_batch(call), HEADS, max(call.max_seqlen_q, 1), max(call.max_seqlen_k, 1))
        return full[b, :, :seq_q, :seq_k].to(torch.float64 if mask.is_floating_point() else mask.dtype).numpy()

    allowed = None
    if call.attn_mask is not None and call.attn_mask.dtype == torch.bool:
        allowed = cut(call.attn_mask)
    if call.block_mask is not None:
        allowed = cut(token_mask(call.block_mask, call.max_seqlen_q, call.max_seqlen_k))
    slopes = call.alibi_slopes if call.alibi_slopes is None or call.alibi_slopes.dim() == 1 else call.alibi_slopes[b]
    return Rules(
        scale=call.softmax_scale,
        causal=call.causal,
        top_left=call.causal_alignment == "top_left",
        window_left=call.window_left,
        window_right=call.window_right,
        softcap=call.softcap,
        sinks=None if call.sinks is None else call.sinks.tolist(),
        slopes=None if slopes is None else slopes.tolist(),
        allowed=allowed,
        bias=cut(call.attn_mask) if call.attn_mask is not None and call.attn_mask.is_floating_point() else None,
        dropout_p=call.dropout_p,
        seed=call.dropout_seed,
    )


def len_batch(call: Call) -> int:
    return call.q.shape[0] if call.cu_seqlens_q is None else len(call.cu_seqlens_q) - 1


def token_mask(mask: BlockMask, seq_q: int, seq_k: int) -> torch.Tensor:
    """The block mask entry by entry."""
    size = mask.block_size
    assert isinstance(size, tuple)
    b, h = mask.blocks.shape[:2]
    tokens = torch.zeros(b, h, seq_q, seq_k, dtype=torch.bool)
    for i in range(seq_q):
        for j in range(seq_k):
            tokens[:, :, i, j] = mask.blocks[:, :, i // size[0], j // size[1]]
    return tokens if mask.mask is None else tokens & mask.mask


def assert_right(given: Scene, call: Call, atol: float) -> None:
    """Output and LSE of every sequence agree with the oracle; empty rows are exact."""
    for b, (out, lse) in enumerate(results(call)):
        q, k, v = (tensors[b].to(torch.float64).numpy() for tensors in (given.q, given.k, given.v))
        want, want_lse = attention(q, k, v, rules_of(call, b, len(q), len(k)), batch=b)
        torch.testing.assert_close(out.to(torch.float64), torch.from_numpy(want), atol=atol, rtol=atol)
        torch.testing.assert_close(lse.to(torch.float64), torch.from_numpy(want_lse), atol=2e-5, rtol=2e-5)
        empty = torch.from_numpy(want).eq(0).all(-1)
        assert not out[empty].any()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("feature", NAMES)
def test_features_agree_with_the_oracle_in_every_layout(feature: str, layout: str) -> None:
    """One meaning per feature, whatever the memory looks like; zero-length sequences on both sides where packed."""
    packed = layout in ("thd", "NHD-packed")
    given = scene(PACKED_Q, PACKED_K) if packed else scene(SEQ_Q, SEQ_K)
    args = features(len(given.q), *given.longest)[feature]
    assert_right(given, call_of(given, layout, **args), atol=2e-6)


@pytest.mark.parametrize(
    ("dtype", "atol"),
    [(torch.float16, 1e-3), (torch.bfloat16, 8e-3), (torch.float32, 2e-6), (torch.float64, 1e-13)],
    ids=lambda value: str(value).removeprefix("torch."),
)
@pytest.mark.parametrize("mask_dtype", ["of-q", "float32"])
def test_every_float_dtype(dtype: torch.dtype, atol: float, mask_dtype: str) -> None:
    """Computed in float32 or better from the rounded inputs, rounded once at the end."""
    given = scene(SEQ_Q, SEQ_K, dtype=dtype)
    args = features(3, *given.longest)["everything"]
    if mask_dtype == "of-q":
        args["attn_mask"] = args["attn_mask"].to(dtype)
    assert_right(given, call_of(given, **args), atol)


@pytest.mark.parametrize("heads", [(6, 6), (6, 3), (6, 1), (8, 2)], ids=lambda h: f"{h[0]}-over-{h[1]}")
def test_query_head_reads_kv_head_of_its_group(heads: tuple[int, int]) -> None:
    """Head h reads KV head h // ratio."""
    given = scene([3], [4], heads=heads)
    call = call_of(given)
    ((out, _lse),) = results(call)
    for h in range(heads[0]):
        kv_head = h // (heads[0] // heads[1])
        alone = Scene(
            q=[given.q[0][:, h : h + 1]],
            k=[given.k[0][:, kv_head : kv_head + 1]],
            v=[given.v[0][:, kv_head : kv_head + 1]],
        )
        ((want, _),) = results(call_of(alone))
        torch.testing.assert_close(out[:, h : h + 1], want, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_empty_batch_and_empty_sequences(layout: str) -> None:
    """No queries, no keys: nothing to do, nothing raised; queries without keys give 0 and -inf."""
    for seq_q, seq_k in (([0, 0], [0, 0]), ([0, 0], [3, 2]), ([2, 2], [0, 0])):
        given = scene(seq_q, seq_k)
        for out, lse in results(call_of(given, layout, causal=True, dropout_p=0.5)):
            assert not out.any()
            assert bool((lse == -INF).all())


def test_a_row_of_a_sink_alone_is_zero_and_its_lse_is_the_sink() -> None:
    """A sink has no value: with nothing else to see the output is 0 and the LSE the sink's logit."""
    given = scene([2], [0])
    ((out, lse),) = results(call_of(given, sinks=torch.tensor([0.5, -1.0, -INF, 3.0])))
    assert not out.any()
    assert lse[:, 0].tolist() == [0.5, -1.0, -INF, 3.0]


def test_packed_tails_of_out_and_lse_are_defined() -> None:
    """Rows behind the last sequence come out as empty rows, not as whatever the host's memory held."""
    call = call_of(scene(PACKED_Q, PACKED_K), "thd")
    results(call)
    assert call.lse is not None
    assert not call.out[sum(PACKED_Q) :].any()
    assert bool((call.lse[:, sum(PACKED_Q) :] == -INF).all())


def test_the_lse_is_optional_and_changes_no_output() -> None:
    """Without an LSE buffer the same output comes out."""
    given = scene(SEQ_Q, SEQ_K)
    with_lse, without = call_of(given), call_of(given)
    results(with_lse)
    without.lse = None
    from attn_backends.backends.eager.adapter import run

    run(without)
    assert torch.equal(with_lse.out, without.out)
