"""The canonical request: one that could be asked, and the same for all requests of a key, whoever asks first."""

from __future__ import annotations

import random

import pytest

from attn_backends import Registry, cache_info, select
from attn_backends.selector.buckets import Buckets
from attn_backends.values import NUMBERS
from tests.selector.scenes import backend, request

CUTS = {"seq_q": (65, 129, 193, 20001)}
LIMITS = {
    "no limit": [],
    "a limit on keys": [("seq_k", {"max": 100})],
    "two limits": [("seq_q", {"min": 80}), ("seq_k", {"max": 100})],
    "wide multiples": [("seq_q", {"multiple_of": 20000}), ("seq_k", {"multiple_of": 20000})],
    "other multiples": [("seq_q", {"multiple_of": 3}), ("seq_k", {"mod": 5, "rest": 2}), ("batch", {"multiple_of": 7})],
    "limited totals": [("total_k", {"max": 5000}), ("num_pages", {"multiple_of": 8})],
}
SIZES = (0, 1, 2, 3, 64, 65, 70, 79, 80, 99, 100, 101, 127, 128, 20000, 80000, 100000, 120000, 2**62, 2**62 + 9)


def _buckets(limits, cuts=None) -> Buckets:
    return Buckets([(name, NUMBERS.parse(raw)) for name, raw in limits], cuts=cuts or {})


def _draw(rng):
    lengths = {"batch": rng.choice((1, 2, 3, 7, 8)), "seq_q": rng.choice(SIZES), "seq_k": rng.choice(SIZES)}
    if rng.random() < 0.4:
        lengths["seq_q"] = lengths["seq_k"]
    if rng.random() < 0.5:
        lengths |= {"page_size": 16, "num_pages": rng.choice(SIZES)}
    elif rng.random() < 0.5:
        lengths |= {"layout": "thd", "varlen": True, "total_q": rng.choice(SIZES), "total_k": rng.choice(SIZES)}
    return request(causal=False, **lengths)


@pytest.mark.parametrize("cuts", [{}, CUTS], ids=["no cuts", "cuts"])
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())
def test_one_key_has_one_canonical_request(limits, cuts):
    """Equal keys have equal canonical requests; each lies in its own key and keeps the order of seq_q and seq_k."""
    buckets, rng, found = _buckets(limits, cuts), random.Random(7), {}
    for _ in range(1500):
        asked = _draw(rng)
        key = buckets.key(asked, (None,) * 99)
        canonical = buckets.canonical(asked)
        assert buckets.key(canonical, (None,) * 99) == key, asked
        assert found.setdefault(key, canonical) == canonical, asked
    assert len(found) < 1500


@pytest.mark.parametrize(
    ("limits", "asked", "seen"),
    [
        ([("seq_k", {"max": 100})], (70, 70), (100, 100)),
        ([], (100, 70), (128, 127)),
        ([], (70, 100), (127, 128)),
        ([("seq_q", {"multiple_of": 20000}), ("seq_k", {"multiple_of": 20000})], (80000, 80000), (120000, 120000)),
    ],
    ids=["equal", "more-queries", "fewer-queries", "multiples"],
)
def test_a_check_sees_lengths_that_can_be_asked(limits, asked, seen):
    """Equal lengths stay equal inside both buckets, the shorter stays shorter, multiples stay multiples."""
    canonical = _buckets(limits).canonical(request(seq_q=asked[0], seq_k=asked[1]))
    assert (canonical.seq_q, canonical.seq_k) == seen


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_who_asked_first_decides_nothing(order, causal):
    """A check that looks at which side is longer answers each of three requests alike in every order of asking."""
    made = Registry(builtin=False, autoload=False)
    made.register(backend("picky", priority=9), print, check=lambda r, _: 1 / 0 if r.seq_q > r.seq_k else [])
    made.register(backend("any"), print)
    lengths = ((100, 65), (65, 100), (70, 70))
    winners = {}
    for index in order:
        asked = request(causal=causal, seq_q=lengths[index][0], seq_k=lengths[index][1])
        winners[index] = select(asked, device="h200", registry=made).backend
    assert winners == {0: "any", 1: "picky", 2: "picky"}


GROWTH = {
    "packed": lambda n: {"layout": "thd", "varlen": True, "batch": 3, "total_q": 3, "total_k": 3 * n},
    "packed, one of three grows": lambda n: {
        "layout": "thd",
        "varlen": True,
        "batch": 3,
        "total_q": 3,
        "total_k": n + 2,
    },
    "a pool that grows": lambda n: {"page_size": 16, "batch": 3, "num_pages": 3 * -(-n // 16)},
    "a fixed pool": lambda _: {"page_size": 16, "batch": 3, "num_pages": 1000},
}


@pytest.mark.parametrize("sizes", GROWTH.values(), ids=GROWTH.keys())
def test_totals_and_pages_add_no_resolutions(sizes):
    """From 1 to 1,024 keys, decoding costs the eleven powers of two of seq_k, whatever grows beside it."""
    made = Registry(builtin=False, autoload=False)
    made.register(backend("a", box={"page_size": "any", "kv_layout": ["NHD"], "varlen": "any"}), print)
    before = cache_info().resolutions
    for n in range(1, 1025):
        select(request(phase="decode", seq_q=1, seq_k=n, **sizes(n)), device="h200", registry=made)
    assert cache_info().resolutions - before <= 11
