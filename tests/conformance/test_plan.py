"""Plans: from a declaration to items, without running anything."""

from __future__ import annotations

import itertools

import pytest

from attn_backends import Device, list_backends
from attn_backends.conformance.case import parse
from attn_backends.conformance.case_request import request_of
from attn_backends.conformance.checks import CHECKS
from attn_backends.conformance.cover import added_items
from attn_backends.conformance.item import parse_item
from attn_backends.conformance.pairwise import Cover
from attn_backends.conformance.plan import plan
from attn_backends.conformance.spec import clauses
from attn_backends.conformance.standing import standing
from attn_backends.registry.manifest import read_manifest
from tests.conformance.planted import BOX, PAGED

CPU = Device.of("cpu")


def _manifest(*, paged=False, **changes):
    box = {name: value for name, value in {**BOX, **changes}.items() if value is not None}
    raw = {"name": "on_paper", "version": "1", "kernel": "nowhere:run", "capability": [box, PAGED] if paged else [box]}
    return read_manifest(raw, label="on_paper", origin="in_process")


@pytest.fixture(scope="module")
def planned():
    return plan(_manifest(paged=True), "quick", CPU)


def test_pairs_are_all_met():
    """Every two options of two factors share a test, but those that may not meet."""
    sizes = [3, 2, 4, 2]

    def build(picks):
        return None if picks.get(0) == 1 and picks.get(2) == 3 else tuple(sorted(picks.items()))

    tests = [dict(test) for test in Cover(sizes, build).tests()]
    for (a, b), (x, y) in (
        (factors, options)
        for factors in itertools.combinations(range(4), 2)
        for options in itertools.product(range(sizes[factors[0]]), range(sizes[factors[1]]))
    ):
        if (a, b, x, y) != (0, 2, 1, 3):
            assert any(test.get(a) == x and test.get(b) == y for test in tests), (a, b, x, y)
    assert len(tests) < 24


def test_declared_cases_lie_in_the_declaration_and_refused_ones_outside(planned):
    """What is judged is declared; what must be refused misses its axis."""
    boxes = _manifest(paged=True).boxes
    for item in planned.items:
        stands = standing(boxes, request_of(item.case), CPU)
        kind, _, axis = item.check.partition("-")
        if kind == "refused":
            assert axis in stands.axes or axis in ("device", "arch", "graph", "compile", "unknown_feature"), item.id
        else:
            assert stands.fits, (item.id, stands.axes)


def test_ids_replay_and_clauses_exist(planned):
    """An item is its id, its clauses are those of the spec, its check applies to it."""
    known = clauses()
    for item in planned.items:
        assert parse_item(item.id) == (item.check, item.case)
        assert item.clauses, item.id
        assert set(item.clauses) <= set(known), item.id
        assert CHECKS[item.check].applies(item.case), item.id
    assert all(set(check.clauses) <= set(known) for check in CHECKS.values())


def test_the_nasty_set_is_there(planned):
    """The two cases that kill most, and their gradients."""
    ids = {item.id for item in planned.items}
    assert "oracle/fwd-fp16-b2h4x2-s129x65-d40-causal-cap30-randn-s0" in ids
    assert "oracle/fwd-bf16-b2h4x2-s17x200-d40-causal-left16-randn-s0" in ids
    assert "gradients/bwd-fp16-b2h4x2-s129x65-d40-causal-cap30-randn-s0" in ids


def test_added_items_run_where_they_are_declared(planned):
    """Those that no generated case stands for; a box without windows gets none with one."""
    items = [  # no plan here declares block masks or heads as wide
        item for item in added_items() if item.case.block_mask is None and item.case.head_dim <= 128
    ]
    assert {item.id for item in items} <= {item.id for item in planned.items}
    narrow = {item.id for item in plan(_manifest(window=None), "quick", CPU).items}
    dense = [item.case for item in items if item.case.page_size is None]
    plain = {case.id for case in dense if case.left < 0 and case.right < 0}
    assert plain <= {case.partition("/")[2] for case in narrow}
    assert not narrow & {item.id for item in added_items() if item.case.left >= 0}


def test_every_declared_word_is_shown(planned):
    """Nothing declared goes without a case."""
    assert planned.uncovered == ()


def test_every_check_that_can_run_runs(planned):
    """Each exact rig and property has cases of this declaration."""
    ran = {item.check for item in planned.items}
    missing = {
        check.name for check in CHECKS.values() if check.kind in ("oracle", "exact", "property")
        and check.level == "quick" and not check.gpu
    } - ran  # fmt: skip
    assert missing == set()


def test_a_declared_value_that_no_case_can_show_is_uncovered():
    """A box that declares dropout for widths that nobody runs is told so."""
    found = plan(_manifest(head_dim=[5000], head_dim_v=[5000]), "quick", CPU)
    assert any("no case" in note for note in found.notes)
    assert found.uncovered


NARROW = {
    "kv_format": ["dense"], "scale_granularity": None, "layout": ["bshd"], "varlen": None, "dense_lengths": None,
    "window": None, "phase": ["prefill"],
}  # fmt: skip


@pytest.mark.parametrize(
    "declared",
    [{"gqa_ratio": [8]}, {"gqa_ratio": [16]}, {"seq_len": {"multiple_of": 128}}, {"seq_len": {"min": 512}},
     {"seq_len": {"mod": 64, "rest": 32}}, {"seq_len": None, "seq_q": [1], "seq_k": {"multiple_of": 64, "max": 4096}},
     {"head_dim": [48], "head_dim_v": [48]}, {"causal": [True], "causal_alignment": None},
     {"window": ["left"], "causal_alignment": ["bottom_right"]}, {"out_dtype": ["same", "float16", "bfloat16", "float32", "float64"]}],
    ids=lambda declared: " ".join(f"{axis}={value}" for axis, value in declared.items()),
)  # fmt: skip
def test_a_narrow_box_is_within_reach_of_quick(declared):
    """One ratio, lengths in steps or long ones alone, a feature that is always on: cases lie in it and show all of it."""
    found = plan(_manifest(**{**NARROW, **declared}), "quick", CPU)
    assert len(found.items) > 50
    assert found.uncovered == ()


def test_an_empty_box_is_told_what_the_nearest_case_misses():
    """`thd` without `varlen` admits no call at all; the note names the axis."""
    found = plan(_manifest(**{**NARROW, "layout": ["thd"]}), "quick", CPU)
    assert found.items == ()
    assert any("the nearest, fwd-" in note and note.endswith("misses layout") for note in found.notes), found.notes


def test_boxes_of_other_hardware_are_not_run_and_counted():
    """A GPU's box gives no item here, and is not forgotten."""
    found = plan(_manifest(device=["cuda"], arch=["9.0"]), "quick", CPU)
    assert found.items == ()
    assert len(found.not_run) > 20
    assert {one.needs for one in found.not_run} == {"sm_90"}
    assert "not run here: 1 of 1 box, which needs sm_90" in found.notes
    there = plan(_manifest(device=["cuda"], arch=["9.0"]), "quick", Device.pretend("h200"))
    assert len(there.items) > 50
    assert there.not_run == ()


def test_refusals_flip_every_closed_axis():
    """An axis on which the box does not declare everything has a refused item."""
    found = plan(_manifest(softcap=None, sinks=None, causal=[False], layout=["bshd"], varlen=None), "quick", CPU)
    flipped = {item.check.removeprefix("refused-") for item in found.items if item.check.startswith("refused-")}
    assert {"softcap", "sinks", "causal", "layout", "block_mask", "dropout", "head_dim", "page_size"} <= flipped


def test_levels_grow():
    """quick runs less than full, and probes come with full."""
    narrow = _manifest(mask=None, bias=None, alibi=None, scale_granularity=None, kv_format=["dense"])
    quick, full = (plan(narrow, level, CPU).items for level in ("quick", "full"))
    assert len(full) > 1.5 * len(quick)
    assert any(item.check.startswith("probe-") for item in full)
    with pytest.raises(ValueError, match="quick, full, deep"):
        plan(narrow, "thorough", CPU)


def test_shipped_backends_have_a_plan_here_or_there():
    """Backends of this machine and of GPUs are within the suite's reach, whole."""
    for manifest in (one for one in list_backends() if one.name in ("eager", "flex", "sdpa_cudnn")):
        found = plan(manifest, "quick", CPU)
        assert found.items or found.not_run, manifest.name
        assert not [note for note in found.notes if "no case of the suite lies" in note], manifest.name


def test_a_case_id_with_an_unknown_word_is_named():
    """Replaying a mistyped id says which word."""
    with pytest.raises(ValueError, match="casual"):
        parse("fwd-fp16-b2h4x2-s129x65-d40-casual-randn-s0")
