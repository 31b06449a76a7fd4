"""The self-test: what it counts, what it prints, and the gate itself."""

from __future__ import annotations

import json

import pytest
import torch

from attn_backends.conformance.cover import greedy_cover, write_order
from attn_backends.conformance.kill_matrix import ControlRecord, KillMatrix, MutantRecord
from attn_backends.conformance.mutants.catalogue import all_mutants, mutant
from attn_backends.conformance.self_test import Task, self_test, work
from attn_backends.registry.registry import default_registry


def record(name, *killers, clause="MASK-1"):
    return MutantRecord(name=name, clause=clause, note=f"{name} is a bug.", killers=killers, own=True, tried=3)


MATRIX = KillMatrix(
    mutants=(record("a", "x/1"), record("b", "x/1", "x/2"), record("c")),
    controls=(ControlRecord(name="good", items=5), ControlRecord(name="odd", items=5, failures=(("x/3", "FAIL: no"),))),
    equivalent={"e": "no call can tell"}, elsewhere={"g": "cuda"}, seconds=1.0,
)  # fmt: skip


def test_the_matrix_counts_kills_survivors_and_failed_controls():
    """Equivalent mutants and those for other hardware are not in the rate."""
    assert MATRIX.summary() == {"mutants": 3, "killed": 2, "controls": 2, "controls_failed": 1}
    assert [one.name for one in MATRIX.survivors] == ["c"]
    assert not MATRIX.holds
    assert MATRIX.kills() == {"x/1": ("a", "b"), "x/2": ("b",)}


def test_the_matrix_prints_everything():
    """Survivors with what they do, items with their kills, proofs, missing hardware, controls with what they failed."""
    text = str(MATRIX)
    assert text.startswith("suite kill rate 2/3, controls 1/2 failed")
    for part in ("c  SURVIVES 3 items: c is a bug.", "2 x/1", "e: no call can tell", "g: needs cuda", "x/3: FAIL: no"):
        assert part in text


def test_the_matrix_as_json_is_plain():
    """It survives a round trip, survivors and failures named."""
    data = json.loads(json.dumps(MATRIX.to_json()))
    assert data["survivors"] == ["c"]
    assert data["control_failures"] == {"odd": [["x/3", "FAIL: no"]]}
    assert data["matrix"]["b"]["killers"] == ["x/1", "x/2"]


def test_the_cover_takes_the_strongest_item_first_and_stops():
    """Greedy, ties by id, nothing that adds nothing."""
    kills = {"i/3": ["a", "b"], "i/1": ["b"], "i/2": ["c"], "i/0": ["a", "b"]}
    assert greedy_cover(kills) == ["i/0", "i/2"]


def test_the_order_is_written_as_data(tmp_path):
    """One JSON file with the cover."""
    path = tmp_path / "order.json"
    assert write_order({"i/1": ["a"]}, path) == ["i/1"]
    assert json.loads(path.read_text())["items"] == ["i/1"]


SAMPLE = [one.name for one in all_mutants() if not one.equivalent and one.hardware is None][::6]


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_mutants_is_killed(name):
    """By an item of its own clause, and nothing stays registered."""
    before, threads = default_registry().snapshot().names(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = work(Task(kind="mutant", name=name))
    finally:
        torch.set_num_threads(threads)
    assert found.killed, found
    assert found.clause == mutant(name).clause
    assert default_registry().snapshot().names() == before


@pytest.mark.exhaustive
def test_every_mutant_is_killed_and_no_control_fails():
    """What a certificate rests on: minutes, so the gate has the sample above and the controls of test_controls."""
    matrix = self_test()
    assert matrix.holds, str(matrix)
