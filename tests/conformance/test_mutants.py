"""The planted bugs: each is a bug, each names a clause, and what kills it passes on the same backend without it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from attn_backends.conformance.backend_in_use import registered
from attn_backends.conformance.checks.host_side import HOST_CHECKS
from attn_backends.conformance.cover import added_items, quick_order
from attn_backends.conformance.engine import run_item
from attn_backends.conformance.item import Item, parse_item
from attn_backends.conformance.mutants.catalogue import all_mutants, mutant
from attn_backends.conformance.mutants.plugins.catalogue import all_lies, lie_named
from attn_backends.conformance.outcome import Outcome, Result
from attn_backends.conformance.spec import clauses
from attn_backends.conformance.trial import Trial, is_kill, victim

BUGS = [one for one in all_mutants() if not one.equivalent]
HERE = [one for one in BUGS if one.hardware is None]

# A mutant and an item that kills it: ten of them are shown red here, and green without the bug.
RED = [
    ("given_scale_dropped", "oracle/fwd-fp32-b2h4x2-s17x33-d40-scale0.3-randn-s0"),
    ("diagonal_always_top_left", "visible/fwd-fp32-b2h4x2-s17x33-d40-causal-randn-s0"),
    ("window_left_counts_oneself", "visible/fwd-fp32-b2h4x2-s17x33-d40-causal-left16-randn-s0"),
    ("lse_in_base_two", "oracle/fwd-fp32-b2h4x2-s17x33-d40-randn-s0"),
    ("gqa_by_modulo", "onehot/fwd-fp32-b2h4x2-s17x33-d40-randn-s0"),
    ("mask_taken_for_packed", "oracle/fwd-fp32-b2h4x2-s17x33-d40-bool2d-randn-s0"),
    ("table_read_past_the_end", "oracle/fwd-fp32-b2h4x2-s17x33-d40-ragged-page5-randn-s0"),
    ("v_by_the_descale_of_k", "oracle/fwd-fp32-b2h4x2-s17x33-d40-ke4m3-ve4m3-ghead-randn-s0"),
    ("dq_without_scale", "gradients/bwd-fp32-b2h4x2-s17x33-d40-randn-s0"),
    ("atomic_adds_in_another_order", "deterministic/bwd-fp32-b2h4x2-s17x33-d40-det-randn-s0"),
    ("q_scaled_in_place", "unmodified/fwd-fp32-b2h4x2-s17x33-d40-randn-s0"),
    ("out_is_a_kept_buffer", "apart/fwd-fp32-b2h4x2-s17x33-d40-randn-s0"),
    # Bugs that show on few calls: each needs the very ingredient that its item has.
    ("window_right_of_zero_is_none", "visible/fwd-fp32-b2h4x2-s17x33-d40-left0-right0-randn-s0"),
    ("window_right_instead_of_causal", "visible/fwd-fp32-b2h4x2-s17x33-d40-causal-left7-right2-randn-s0"),
    ("mask_of_one_row_for_the_first", "oracle/fwd-fp32-b2h4x2-s17x33-d40-bool2d-randn-s1"),
    ("mask_of_three_dims_is_by_sequence", "oracle/fwd-fp32-b2h4x2-s17x33-d40-bias3d-randn-s0"),
    ("blocks_are_square", "visible/fwd-fp32-b2h4x2-s17x33-d40-blocks5x12-randn-s0"),
    ("token_mask_of_blocks_ignored", "visible/fwd-fp32-b2h4x2-s17x33-d40-causal-blocks16-randn-s1"),
    ("sequences_of_no_queries_shift_the_table", "oracle/fwd-fp32-b5h4x2-s17x33-d40-thd-ragged-page16-randn-s0"),
    ("scale_blocks_of_sixteen", "oracle/fwd-fp32-b2h4x2-s17x33-d40-ke4m3-ve4m3-gblock-randn-s0"),
    ("v_in_the_granularity_of_k", "oracle/fwd-fp32-b2h4x2-s17x33-d40-ke4m3-ve4m3-gchannelxtoken-randn-s0"),
    ("one_key_is_its_value", "apart/fwd-fp32-b2h2x2-s5x1-d40-randn-s0"),
    ("long_splits_by_the_batch", "batch_invariant/fwd-fp32-b1h2x1-s1x2100-d16-batchinv-randn-s0"),
    ("the_last_two_adds_race", "deterministic/bwd-fp32-b2h4x2-s129x65-d40-det-randn-s0"),
    ("only_nan_is_cleared", "unseen/fwd-fp32-b2h4x2-s17x33-d40-bool4d-randn-s1"),
    ("small_weights_flushed", "tail/fwd-bf16-b1h2x1-s5x4097-d64-randn-s0"),
    ("padding_times_zero", "oracle/fwd-fp32-b2h4x2-s17x33-d40-row_padded-randn-s0"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(name: str, text: str) -> Result:
    return run_item(name, Item(*parse_item(text)))


def run_mutant(name: str, text: str) -> Result:
    bug = mutant(name)
    host = bug.victim()
    with registered(bug.manifest(), host.run, host.backward) as backend:
        return run(backend, text)


def test_there_are_enough_and_every_name_is_one_bug():
    """At least 64 planted bugs and 8 lies, each under a name of its own."""
    names = [one.name for one in (*all_mutants(), *all_lies())]
    assert len(names) == len(set(names))
    assert len(BUGS) >= 64
    assert len(all_lies()) >= 8


def test_at_most_three_mutants_per_clause():
    """No clause makes the kill rate by itself."""
    counts = Counter(one.clause for one in BUGS)
    assert {clause: count for clause, count in counts.items() if count > 3} == {}


def test_the_map_of_clauses_and_mutants_is_total():
    """Every clause of the spec has a mutant or a lie, and every one of them names a clause that exists."""
    named = {one.clause for one in (*BUGS, *all_lies())}
    assert named == set(clauses())


@pytest.mark.parametrize("one", all_mutants(), ids=lambda one: one.name)
def test_a_mutant_says_what_its_author_did(one):
    """A sentence, and a proof where it is no bug."""
    assert one.note.endswith(".")
    assert one.proof == "" or len(one.proof) > 40


@pytest.mark.parametrize(("name", "text"), RED, ids=[name for name, _ in RED])
def test_the_check_that_kills_a_mutant_is_green_without_the_bug(name, text):
    """Red with the bug, green when it is taken out."""
    assert is_kill(run_mutant(name, text)), run_mutant(name, text)
    with victim() as backend:
        result = run(backend, text)
    assert result.outcome is Outcome.PASS, result.message


@pytest.mark.parametrize("item", added_items(), ids=lambda item: item.id)
def test_items_added_by_hand_pass_on_the_victim_and_kill_a_mutant(item):
    """They are there because some mutant lives without them."""
    with victim() as backend:
        assert run_item(backend, item).outcome is Outcome.PASS
    trial = Trial()
    assert any(trial.killed_by(one, item) for one in HERE if one.clause in item.clauses)


def test_every_item_of_the_order_can_be_replayed():
    """The order names checks and cases that exist."""
    assert quick_order()
    for text in quick_order():
        check, case = parse_item(text)
        assert f"{check}/{case.id}" == text


def test_an_exception_is_no_kill():
    """OVERCLAIM and CRASH do not count, nor does a fault of the suite."""
    made = {"id": "oracle/x", "clauses": (), "message": ""}
    assert not is_kill(Result(outcome=Outcome.OVERCLAIM, **made))
    assert not is_kill(Result(outcome=Outcome.CRASH, **made))
    assert not is_kill(Result(outcome=Outcome.FAIL, **{**made, "message": "the suite is at fault: no"}))
    assert is_kill(Result(outcome=Outcome.FAIL, **made))
    assert is_kill(Result(outcome=Outcome.SILENT_WRONG, **made))


@pytest.mark.parametrize("check", HOST_CHECKS.values(), ids=lambda check: check.name)
def test_the_host_helpers_pass_what_tells_wrong_ones(check):
    """`merge_states` and `append_kv` themselves are right."""
    assert check.run().ok


FAST_LIES = [
    one.name for one in all_lies() if one.clause.startswith(("MERGE", "APPEND", "PLUGIN", "REFUSE-1", "DECLARE-3"))
]


@pytest.mark.parametrize("name", FAST_LIES)
def test_a_lie_is_told_by_its_word(name):
    """The host or the suite names it by the outcome or reason that it must have."""
    record = lie_named(name).tried()
    assert record.killed, record.message


@pytest.mark.slow
@pytest.mark.parametrize("name", [one.name for one in all_lies() if one.name not in FAST_LIES])
def test_a_lie_that_takes_longer_is_told_by_its_word(name):
    """The same, over items of a whole backend."""
    record = lie_named(name).tried()
    assert record.killed, record.message
