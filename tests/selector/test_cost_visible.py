"""Counts of visible pairs and seen keys: closed forms against counting one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attn_backends.registry.tiles import DEFAULT
from attn_backends.selector.cost.extent import extent_of
from attn_backends.selector.cost.sequences import sequences_of
from attn_backends.selector.cost.tiling import FULL, parts_of, tiled
from attn_backends.selector.cost.visible import diagonal, keys_seen, reach, visible_pairs
from tests.selector.scenes import request

LENGTH = st.integers(0, 40)
SIDE = st.integers(-1, 45)


def rows(seq_q, seq_k, left, right, offset):
    """Per query, the set of keys that it sees."""
    return [
        {
            key
            for key in range(seq_k)
            if (left < 0 or key >= query + offset - left) and (right < 0 or key <= query + offset + right)
        }
        for query in range(seq_q)
    ]


def asked(**changes):
    """A request whose lengths need not make sense to a kernel."""
    return request(**{"seq_q": 8, "seq_k": 8, "causal": False, **changes})


@given(LENGTH, LENGTH, SIDE, SIDE, st.booleans(), st.sampled_from(["bottom_right", "top_left"]))
def test_pairs_and_keys_are_those_of_counting(seq_q, seq_k, left, right, causal, alignment):
    """Causal on both diagonals, windows, Sq != Sk, empty rows and empty sides: the closed forms are exact."""
    one = asked(
        seq_q=seq_q, seq_k=seq_k, window_left=left, window_right=right, causal=causal, causal_alignment=alignment
    )
    before, behind = reach(one)
    offset = diagonal(one, seq_q, seq_k)
    visible = rows(seq_q, seq_k, left, 0 if causal else right, offset)
    assert visible_pairs(seq_q, seq_k, before, behind, offset) == sum(map(len, visible))
    assert keys_seen(seq_q, seq_k, before, behind, offset) == len(set().union(*visible))


@given(st.integers(1, 9), st.integers(1, 30), st.integers(1, 30), st.data())
def test_packed_totals_are_kept(batch, seq_q, seq_k, data):
    """The groups that stand for a packed batch have its size, its maxima and its totals."""
    totals = [data.draw(st.none() | st.integers(longest, longest * batch)) for longest in (seq_q, seq_k)]
    one = asked(layout="thd", varlen=True, batch=batch, seq_q=seq_q, seq_k=seq_k, total_q=totals[0], total_k=totals[1])
    groups = sequences_of(one)
    assert sum(count for count, _, _ in groups) == batch
    assert max(q for _, q, _ in groups) == seq_q
    assert max(k for _, _, k in groups) == seq_k
    assert all(count > 0 and q >= 0 and k >= 0 for count, q, k in groups)
    assert sum(count * q for count, q, _ in groups) == (batch * seq_q if totals[0] is None else totals[0])
    assert sum(count * k for count, _, k in groups) == (batch * seq_k if totals[1] is None else totals[1])


def test_one_prefill_chunk_among_decodes_is_exact():
    """64 sequences, one of 512 new tokens and 63 of one: the request's maxima and total tell them apart."""
    one = asked(layout="thd", varlen=True, phase="mixed", page_size=16, batch=64, seq_q=512, seq_k=1024, total_q=575, causal=True)  # fmt: skip
    assert sequences_of(one) == ((1, 512, 1024), (63, 1, 1024))
    assert extent_of(one).visible == 512 * 512 + 512 * 513 // 2 + 63 * 1024


def test_known_lengths_are_counted_instead_of_the_maxima():
    """Whoever knows the real lengths gives them, and every count is theirs."""
    one = asked(batch=3, seq_q=1, seq_k=100, causal=True, phase="decode")
    extent = extent_of(one, ((1, 1, 100), (2, 1, 10)))
    assert (extent.queries, extent.keys, extent.visible, extent.every) == (3, 120, 120, 120)


@pytest.mark.parametrize(
    ("changes", "least", "most"),
    [
        ({"seq_q": 4096, "seq_k": 4096, "batch": 33}, 1.0, 1.04),
        ({"seq_q": 4096, "seq_k": 4096, "batch": 33, "causal": True}, 1.05, 1.2),
        ({"seq_q": 512, "seq_k": 512, "batch": 330, "causal": True}, 1.3, 1.9),
        ({"seq_q": 1, "seq_k": 4096, "phase": "decode", "causal": True}, 16.0, 17.0),
        ({"seq_q": 1, "seq_k": 4096, "phase": "decode", "num_kv_heads": 1, "causal": True}, 2.0, 2.1),
    ],
    ids=["full", "causal", "short", "decode", "decode-gqa"],
)
def test_tiles_cost_more_than_what_is_visible(changes, least, most):
    """A tiled kernel computes half a tile more along the band, a tile more per tile of queries, and pads few rows to 16."""
    one = asked(**changes)
    extent = extent_of(one)
    computed = extent.packed + tiled(extent, one.num_q_heads, 1, False, DEFAULT, 132)[0] / one.num_q_heads
    assert least <= computed / extent.visible <= most


@pytest.mark.parametrize("units", [2, 7, 108, 132])
def test_keys_are_split_into_the_fewest_parts_that_fill_the_waves(units):
    """As trying every number of parts would say."""
    for count in range(1, units):
        for blocks in (5, 6, 31, 64, 131, 133, 500):
            full = [count * parts / (-(-count * parts // units) * units) for parts in range(1, min(units, blocks) + 1)]
            assert parts_of(count, blocks, units) == next(
                parts for parts, share in enumerate(full, 1) if share >= FULL * max(full)
            )
