"""Lengths that take as many tiles are one bucket; where a declared tile begins another one may win."""

from __future__ import annotations

import dataclasses

import pytest

from attn_backends import Device
from attn_backends.selector.tile_edges import LONGEST, MOST_TILES, tile_edges
from tests.selector.measured_rows import row, stored, written
from tests.selector.scenes import backend, decide, registry, request

H200 = Device.pretend("h200")
HERE = dataclasses.replace(H200, pretended=False)
FAST = {"matrix": 0.7, "memory": 0.9}
MADE = registry(
    backend("of_128", efficiency=FAST, tiles=[{"rows": 128, "keys": 64}]),
    backend("of_192", efficiency=FAST, tiles=[{"rows": 192, "keys": 64}]),
)


def asked(length, **changes):
    return request(batch=64, seq_q=length, seq_k=length, num_q_heads=32, num_kv_heads=32, causal=False, **changes)


@pytest.mark.parametrize(
    ("tiles", "first", "last", "count"),
    [
        pytest.param([], None, None, 0, id="nobody declares tiles"),
        pytest.param([{"rows": 128}], 129, 2049, MOST_TILES, id="one size"),
        pytest.param([{"rows": 64}, {"rows": 128}], 65, 2049, 24, id="two, with edges in common"),
        pytest.param([{"rows": 1024}], 1025, LONGEST + 1, 3, id="no further than the longest"),
    ],
)
def test_edges_are_multiples_of_declared_tiles(tiles, first, last, count):
    """One behind each, up to sixteen tiles."""
    found = tile_edges(registry(backend("a", tiles=tiles)).snapshot().manifests)
    assert len(found) == count
    assert (found[:1], found[-1:]) == (((first,), (last,)) if count else ((), ()))
    assert list(found) == sorted(found)


@pytest.mark.parametrize(
    ("length", "winner"), [(576, "of_192"), (640, "of_128"), (520, "of_192"), (620, "of_128"), (960, "of_192")]
)
def test_the_fastest_changes_within_a_power_of_two(length, winner):
    """576 are 3 tiles of 192 and 5 of 128, the last half empty; 640 are 4 and 5."""
    decision = decide(MADE, request=asked(length))
    assert (decision.backend, decision.source) == (winner, "cost_model")


def test_lengths_of_as_many_tiles_are_decided_together():
    """And a cache of keys that grows costs no more resolutions than before: new tokens alone are cut."""
    ids = {length: decide(MADE, request=asked(length)).id for length in (577, 600, 640, 641)}
    assert len({ids[577], ids[600], ids[640]}) == 1
    assert ids[641] != ids[640]
    grown = {decide(MADE, request=request(seq_q=1, seq_k=keys, causal=True)).id for keys in range(513, 1025, 37)}
    assert len(grown) == 1


@pytest.mark.parametrize(("length", "winner"), [(576, "of_192"), (640, "of_128"), (860, "of_192")])
def test_a_measured_time_counts_at_the_lengths_that_are_asked_for(tmp_path, length, winner):
    """The times of the whole power of two are nearly alike; what each is predicted to take here tells them apart.

    At 860 the model alone prefers 7 tiles of 128 to 5 of 192, but so it does at the lengths that were timed.
    """
    top = asked(1024)
    path = written(
        tmp_path / "times.sqlite",
        [row(MADE, name, ms, asked=top) for name, ms in (("of_128", 5.0), ("of_192", 5.01))],
        device=HERE,
    )
    decision = decide(MADE, request=asked(length), device=HERE, measurements=stored(path))
    assert (decision.backend, decision.source) == (winner, "measured")


def test_a_measured_time_stands_where_somebody_has_no_prediction(tmp_path):
    """Then nothing is moved: one of two times alone would be."""
    made = registry(
        backend("of_128", efficiency=FAST, tiles=[{"rows": 128, "keys": 64}]), backend("unknown", priority=99)
    )
    path = written(
        tmp_path / "times.sqlite",
        [row(made, name, ms, asked=asked(1024)) for name, ms in (("of_128", 5.0), ("unknown", 5.01))],
        device=HERE,
    )
    decision = decide(made, request=asked(576), device=HERE, measurements=stored(path))
    assert {name: decision.candidate(name).measured_ms for name in ("of_128", "unknown")} == {
        "of_128": 5.0, "unknown": 5.01
    }  # fmt: skip
