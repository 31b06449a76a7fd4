"""The decision cache: what a question costs, when answers are dropped, and many threads at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from attn_backends import Environment, Policy, cache_info, clear_cache, select, use
from attn_backends.selector.cache import DecisionCache
from attn_backends.selector.select import changes, use_cost_model, use_measurements
from attn_backends.selector.times import FixedTimes
from tests.selector.scenes import backend, decide, registry, request


def _cost(act) -> int:
    before = cache_info().resolutions
    act()
    return cache_info().resolutions - before


def test_ten_alternating_requests_cost_ten_resolutions():
    """Ever: a hundred rounds later they have cost no more."""
    made = registry()
    asked = [request(head_dim_qk=width, causal=causal) for width in (32, 64, 96, 128, 256) for causal in (False, True)]
    assert _cost(lambda: [select(one, device="h200", registry=made) for _ in range(100) for one in asked]) == 10


@pytest.mark.parametrize(
    ("box", "most"),
    [
        ({}, 12),
        ({"seq_len": {"seq_q": "any", "seq_k": {"max": 1500}}}, 13),
        ({"seq_len": {"seq_q": "any", "seq_k": [1000]}}, 14),
    ],
    ids=["no-limit", "one-limit", "one-length"],
)
def test_a_growing_decode_costs_one_resolution_per_power_of_two(box, most):
    """From 1 to 2,048 keys: twelve buckets, and one more per declared limit."""
    made = registry(backend("a", box=box), backend("b"))

    def grow() -> None:
        for seq_k in range(1, 2049):
            select(request(seq_q=1, phase="decode", seq_k=seq_k), device="h200", registry=made)

    assert _cost(grow) <= most


@pytest.mark.parametrize("limit", [700, 1024, 1025, 4096])
def test_both_sides_of_a_limit_are_decided_right(limit):
    """Whatever was asked before, a length above the limit never gets the answer of one below."""
    made = registry(
        backend("short", priority=9, box={"seq_len": {"seq_q": "any", "seq_k": {"max": limit}}}), backend("long")
    )
    lengths = sorted({1, limit // 2 + 1, limit - 1, limit, limit + 1, limit + 2, 2 * limit})
    for order in (lengths, lengths[::-1]):
        winners = {n: select(request(seq_k=n), device="h200", registry=made).backend for n in order}
        assert winners == {n: "short" if n <= limit else "long" for n in lengths}


def test_multiples_are_told_apart():
    """A declared multiple never shares an answer with its neighbours."""
    made = registry(
        backend("tiles", priority=9, box={"seq_len": {"seq_q": "any", "seq_k": {"multiple_of": 64}}}), backend("b")
    )
    winners = [select(request(seq_k=n), device="h200", registry=made).backend for n in (128, 127, 129, 192, 191)]
    assert winners == ["tiles", "b", "b", "tiles", "b"]


def test_a_hit_is_the_same_object():
    """Asked again word for word, or in the same bucket, the answer is the same Decision."""
    made = registry()
    first = select(request(seq_k=600), device="h200", registry=made)
    assert select(request(seq_k=600), device="h200", registry=made) is first
    assert select(request(seq_k=601), device="h200", registry=made) is first


CHANGES = {
    "registration": lambda made: made.register(backend("c", priority=9), lambda call: None),
    "unregistration": lambda made: made.unregister("b"),
    "load failure": lambda made: made.remember_failure("b", "does not load"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_of_the_registry_drops_its_answers(change):
    """The next question after a change is decided anew, under another id."""
    made = registry()
    before = decide(made)
    change(made)
    after = decide(made)
    assert after is not before
    assert after.backend != before.backend
    assert after.id != before.id


@pytest.mark.parametrize(
    "arguments",
    [
        {"policy": Policy(block=["a"])}, {"device": "h100"}, {"backend": "a"}, {"measurements": FixedTimes.of({"a": 1.0})},
        {"environment": Environment.pretend(torch="2.11")},
    ],
    ids=["policy", "device", "backend", "measurements", "environment"],
)  # fmt: skip
def test_whatever_a_decision_depends_on_is_in_its_id(arguments):
    """Another policy, device, choice, environment or measurement is another question with another id."""
    made = registry()
    plain = select(request(), registry=made, device="h200")
    other = select(request(), registry=made, **{"device": "h200", **arguments})
    assert other.id != plain.id
    assert select(request(), registry=made, device="h200") is plain


def test_a_scope_is_part_of_the_question():
    """Inside a scope the same request is another question; outside again, the old answer stands."""
    made = registry()
    outside = decide(made)
    with use("a"):
        inside = decide(made)
    assert (inside.backend, outside.backend) == ("a", "b")
    assert inside.id != outside.id
    assert decide(made) is outside


def test_clear_cache_and_new_measurements_forget():
    """After clear_cache, or new process-wide measurements, a question costs a resolution again."""
    made = registry()
    for forget in (clear_cache, lambda: use_measurements(None)):
        decide(made)
        forget()
        assert _cost(lambda: decide(made)) == 1


def test_the_cache_is_bounded():
    """Ten times more questions than room: it never holds more, and still answers."""
    cache = DecisionCache(max_size=64)
    made = decide(registry())
    for number in range(640):
        found, fresh = cache.resolve(("exact", number), ("bucket", number), lambda: made)
        assert found is made
        assert fresh
        assert cache.info().size <= 64
    assert cache.info().resolutions == 640
    assert cache.get(("exact", 639)) is made


def test_threads_share_one_resolution():
    """Sixteen threads ask the same eight questions at once: eight resolutions, eight answers."""
    made = registry()
    asked = [request(head_dim_qk=width) for width in (16, 32, 48, 64, 80, 96, 112, 128)]
    barrier = threading.Barrier(16)

    def ask() -> list[int]:
        barrier.wait()
        return [id(select(one, device="h200", registry=made)) for _ in range(20) for one in asked]

    def all_at_once() -> None:
        with ThreadPoolExecutor(16) as pool:
            answers = [future.result() for future in [pool.submit(ask) for _ in range(16)]]
        assert len({tuple(one) for one in answers}) == 1

    assert _cost(all_at_once) == 8


class Store:
    """Measured or predicted times whose contents change in place."""

    def __init__(self) -> None:
        self.token = 1

    def times(self, request, device):
        return {"a": 1.0} if self.token > 1 else {"b": 1.0}

    def predict(self, manifest, request, device):
        return self.times(request, device).get(manifest.name)


@pytest.mark.parametrize("give", [use_measurements, use_cost_model], ids=["measurements", "cost model"])
def test_new_contents_of_a_store_reach_the_hot_path(give):
    """`changes()`, which hot keys hold, differs once the token of the store or the model does."""
    store, made = Store(), registry()
    give(store)
    try:
        before, winner = changes(), decide(made).backend
        store.token = 2
        assert changes() != before
        assert (winner, decide(made).backend) == ("b", "a")
    finally:
        give(None)
