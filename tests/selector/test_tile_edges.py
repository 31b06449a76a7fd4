"""Lengths that take as many tiles are one bucket; where a declared tile begins another one may win."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from attn_backends import Device
from attn_backends.selector.cost.sequences import sequences_of, within
from attn_backends.selector.tile_edges import LONGEST, MOST_TILES, batch_edges, begin_of, least_batch, tile_edges
from tests.selector.measured_rows import row, stored, written
from tests.selector.scenes import backend, decide, registry, request

H200 = Device.pretend("h200")
HERE = dataclasses.replace(H200, pretended=False)
FAST = {"matrix": 0.7, "memory": 0.9}
MADE = registry(
    backend("of_128", efficiency=FAST, tiles=[{"rows": 128, "keys": 64}]),
    backend("of_192", efficiency=FAST, tiles=[{"rows": 192, "keys": 64}]),
)


ROWS = {"of 64": (64, 128, 192), "of other rows": (80, 112, 176), "small": (16, 24), "none": ()}
PACKED = {"varlen": "any"}
FEW, MANY = 1, 512  # heads


def with_rows(*rows):
    """One backend for each, all as fast but for how they fill their tiles."""
    return registry(*[backend(f"of_{one}", efficiency=FAST, tiles=[{"rows": one, "keys": 64}]) for one in rows])


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


@pytest.mark.parametrize(
    ("length", "rows", "begin"),
    [
        (0, (), 0), (1, (), 1), (2, (), 2), (4, (), 3), (1024, (), 513), (1025, (), 1025), (640, (128, 192), 577),
        (336, (80, 112, 176), 321), (320, (80, 112, 176), 257), (48, (16,), 33), (2049, (128,), 2049), (4096, (192,), 3073),
    ],
)  # fmt: skip
def test_a_range_begins_at_the_last_tile_or_power_of_two(length, rows, begin):
    """Of all lengths that take as many tiles of everybody, the least."""
    assert begin_of(length, with_rows(*rows).snapshot().manifests if rows else ()) == begin


@pytest.mark.parametrize("heads", [FEW, MANY], ids=["few rows", "many rows"])
@pytest.mark.parametrize("more", [0, 1, 20000], ids=["square", "a key more", "many keys more"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
def test_no_size_leaves_its_range(rows, more, heads):
    """However narrow the range: each size takes as many tiles as all lengths of its bucket, and its queries are not more than its keys."""
    manifests = with_rows(*rows).snapshot().manifests if rows else ()
    edges = sorted({1, *tile_edges(manifests), *[2**power + 1 for power in range(14)]})
    for begin, end in itertools.pairwise(edges):
        top = end - 1
        assert begin_of(top, manifests) == begin
        for ((count, new, keys),) in within(((8, top, top + more),), heads, begin, 7):
            assert count in (7, 8)
            assert begin <= new <= top
            assert new == keys if more == 0 else new <= keys <= top + more


@pytest.mark.parametrize("length", [70, 100, 170, 330, 350])
def test_narrow_ranges_are_decided_as_their_lengths_are(length):
    """Tiles of 80, 112 and 176 leave ranges of 16 tokens; whoever wastes least at the length itself is chosen."""
    made = with_rows(80, 112, 176)
    least = min((80, 112, 176), key=lambda rows: -(-length // rows) * rows)
    decision = decide(made, request=asked(length))
    assert (decision.backend, decision.source) == (f"of_{least}", "cost_model")


@pytest.mark.parametrize(
    ("totals", "groups"),
    [
        ({"total_q": 2400, "total_k": 2400}, ((4, 600, 600),)),
        ({"total_q": 2400}, ((4, 600, 600),)),
        ({"total_q": 2399, "total_k": 2399}, ((3, 600, 600), (1, 599, 599))),
        ({"total_q": 2400, "total_k": 2399}, ((3, 600, 600), (1, 600, 599))),
        ({"total_q": 603, "total_k": 2400}, ((1, 600, 600), (3, 1, 600))),
    ],
    ids=["equal", "equal, keys unknown", "one is shorter", "one has less keys", "one chunk among decodes"],
)
def test_equal_sequences_are_one_group(totals, groups):
    """A packed batch of equal lengths is to the model what it is padded; others are grouped with their like."""
    packed = asked(600, layout="thd", varlen=True, **totals).resized(batch=4)
    assert sequences_of(packed) == groups


@pytest.mark.parametrize("batch", [3, 64], ids=["few rows", "many rows"])
@pytest.mark.parametrize("length", [70, 576, 640, 4000])
def test_a_packed_batch_of_equal_lengths_ranks_as_the_padded_one(length, batch):
    """The same predictions, where no kernel treats ragged calls in another way."""
    made = registry(
        *[backend(f"of_{one}", box=PACKED, efficiency=FAST, tiles=[{"rows": one, "keys": 64}]) for one in (128, 192)]
    )
    padded = request(batch=batch, seq_q=length, seq_k=length, causal=False)
    packed = request(
        batch=batch, seq_q=length, seq_k=length, causal=False, layout="thd", varlen=True, total_q=batch * length,
        total_k=batch * length,
    )  # fmt: skip
    found = [
        {one.name: one.predicted_ms for one in decide(made, request=which).candidates} for which in (padded, packed)
    ]
    assert found[0] == pytest.approx(found[1])
    assert None not in found[0].values()


@pytest.mark.parametrize("keys", [1000, 7000])
@pytest.mark.parametrize(("new", "winner"), [(576, "of_192"), (640, "of_128"), (520, "of_192"), (620, "of_128"), (900, "of_192")])  # fmt: skip
def test_new_tokens_among_more_keys_are_ranked_in_their_range(new, winner, keys):
    """As where the keys are as many: 576 are 3 tiles of 192 and 5 of 128, 640 are 4 and 5."""
    decision = decide(MADE, request=asked(new).resized(seq_k=keys))
    assert (decision.backend, decision.source) == (winner, "cost_model")


@pytest.mark.parametrize("keys", [600, 620, 1000, 7000])
def test_heads_that_share_tiles_gain_where_tiles_are_not_full(keys):
    """At 640 all tiles of 128 are full, at most lengths that take five of them they are not, however many keys there are."""
    alone, shared = {"rows": 128, "keys": 64}, {"rows": 128, "keys": 64, "packs": "always"}
    made = registry(
        backend("alone", efficiency=FAST, tiles=[alone]),
        backend("shared", efficiency={**FAST, "matrix": 0.68}, tiles=[shared]),
    )
    call = request(batch=64, seq_q=600, seq_k=keys, num_q_heads=32, num_kv_heads=4, causal=False)
    assert decide(made, request=call).backend == "shared"


@pytest.mark.parametrize(
    ("top", "heads", "sizes"),
    [
        ((8, 640, 640), FEW, [(8, 624, 624), (7, 592, 592)]),
        ((8, 640, 640), MANY, [(8, 608, 608)]),
        ((8, 640, 8192), FEW, [(8, 624, 6144), (7, 592, 8192), (7, 608, 4506)]),
        ((8, 640, 8192), MANY, [(8, 608, 6144)]),
        ((8, 640, 511), MANY, [(8, 608, 384)]),
        ((8, 1, 8192), FEW, [(8, 1, 6144), (6, 1, 8192), (5, 1, 4506)]),
        ((48, 640, 640), FEW, [(48, 624, 624), (40, 592, 592)]),
        ((1, 4096, 4096), FEW, [(1, 3584, 3584), (1, 4096, 4096), (1, 3175, 3175)]),
    ],
    ids=["square, few", "square", "more keys, few", "more keys", "fewer keys", "decode", "lower half", "one long"],
)
def test_sizes_are_spread_over_what_a_bucket_holds(top, heads, sizes):
    """New tokens over their range, and keys that are not as many over their power of two."""
    manifests = with_rows(64, 128, 192).snapshot().manifests
    begin, fewest = begin_of(top[1], manifests), least_batch(top[0], top[1], manifests)
    assert within((top,), heads, begin, fewest) == tuple((size,) for size in sizes)


def test_batches_of_several_new_tokens_are_cut_in_the_middle():
    """Of their powers of two, where somebody declares tiles; whoever asks about 5 and 6, or 7 and 8, is answered alike."""

    def ids(made, **changes):
        return {batch: decide(made, request=request(batch=batch, **changes)).id for batch in range(1, 10)}  # fmt: skip

    cut = ids(MADE, seq_q=640, seq_k=640)
    assert [cut[batch] == cut[batch + 1] for batch in range(1, 9)] == [batch in (5, 7) for batch in range(1, 9)]
    whole = [batch in (3, 5, 6, 7) for batch in range(1, 9)]
    for made, sizes in ((MADE, {"seq_q": 1, "seq_k": 640}), (registry(), {"seq_q": 640, "seq_k": 640})):
        kept = ids(made, **sizes)
        assert [kept[batch] == kept[batch + 1] for batch in range(1, 9)] == whole


@pytest.mark.parametrize("seq_q", [1, 640])
@pytest.mark.parametrize("tiles", [True, False])
def test_the_least_batch_of_a_range_is_the_first_behind_an_edge(seq_q, tiles):
    """As the cache's buckets have it."""
    manifests = (MADE if tiles else registry()).snapshot().manifests
    edges = {1, *[2**power + 1 for power in range(9)], *(batch_edges(manifests) if seq_q > 1 else ())}
    for batch in range(1, 300):
        assert least_batch(batch, seq_q, manifests) == max(edge for edge in edges if edge <= batch)


@pytest.mark.parametrize(("new", "winner"), [(576, "of_192"), (640, "of_128")])
def test_a_measured_time_counts_at_new_tokens_among_more_keys(tmp_path, new, winner):
    """It is moved to their range too, at the keys that were timed."""
    top, call = [asked(one).resized(seq_k=8192) for one in (1024, new)]
    path = written(
        tmp_path / "times.sqlite",
        [row(MADE, name, ms, asked=top) for name, ms in (("of_128", 5.0), ("of_192", 5.01))],
        device=HERE,
    )
    decision = decide(MADE, request=call, device=HERE, measurements=stored(path))
    assert (decision.backend, decision.source) == (winner, "measured")
    assert 3 < decision.candidate(winner).measured_ms < 5
