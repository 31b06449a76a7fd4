"""`nearest`: per rejected backend, the smallest change of the request that would make it fit."""

from __future__ import annotations

import pytest

from attn_backends import select
from attn_backends.selector.decision import Change
from tests.selector.scenes import BOX, backend, decide, registry, request

FIELD_OF = {"seq_len": "seq_k", "head_dim": "head_dim_qk", "lse": "return_lse", "backward": "needs_backward"}
CASES = {
    "set": ({"head_dim": [64, 96, 256]}, {"head_dim_qk": 100}, [("head_dim", 100, 96)]),
    "set-tie-larger": ({"head_dim": [64, 128]}, {"head_dim_qk": 96}, [("head_dim", 96, 128)]),
    "range-below": ({"head_dim": {"min": 64, "max": 128}}, {"head_dim_qk": 32}, [("head_dim", 32, 64)]),
    "range-above": ({"head_dim": {"min": 64, "max": 128}}, {"head_dim_qk": 256}, [("head_dim", 256, 128)]),
    "multiple": ({"head_dim": {"multiple_of": 8, "max": 256}}, {"head_dim_qk": 100}, [("head_dim", 100, 104)]),
    "multiple-below": ({"head_dim": {"multiple_of": 64, "max": 256}}, {"head_dim_qk": 72}, [("head_dim", 72, 64)]),
    "multiple-from-min": (
        {"head_dim": {"multiple_of": 64, "min": 65, "max": 256}},
        {"head_dim_qk": 72},
        [("head_dim", 72, 128)],
    ),
    "multiple-at-the-end": ({"head_dim": {"multiple_of": 48, "max": 100}}, {"head_dim_qk": 99}, [("head_dim", 99, 96)]),
    "flag-off": ({}, {"softcap": 3.0}, [("softcap", True, False)]),
    "word": ({}, {"window_left": 3}, [("window", "left", "none")]),
    "part": ({"seq_len": {"seq_q": "any", "seq_k": {"max": 100}}}, {}, [("seq_len", 512, 100)]),
    "level": ({"graph": "uniform_decode"}, {"graph": "always"}, [("graph", "always", "uniform_decode")]),
    "two": ({"head_dim": [64]}, {"return_lse": True}, [("head_dim", 128, 64), ("lse", True, False)]),
}


@pytest.mark.parametrize(("box", "changes", "wanted"), CASES.values(), ids=CASES.keys())
def test_the_smallest_change(box, changes, wanted):
    """Each miss of the nearest box becomes a change to the nearest admitted value."""
    decision = decide(registry(backend("a", box=box)), request=request(**changes))
    assert [(c.axis, c.got, c.want) for c in decision.nearest[0].changes] == wanted


@pytest.mark.parametrize(
    "case",
    [
        "set",
        "range-below",
        "range-above",
        "multiple",
        "multiple-below",
        "multiple-from-min",
        "multiple-at-the-end",
        "part",
        "level",
    ],
)
def test_the_change_makes_it_fit(case):
    """Doing what `nearest` says makes the backend fit."""
    box, changes, _ = CASES[case]
    made = registry(backend("a", box=box))
    asked = request(**changes)
    change = decide(made, request=asked).nearest[0].changes[0]
    relaxed = asked.replace(**{FIELD_OF.get(change.axis, change.axis): change.want})
    assert select(relaxed, device="h200", registry=made).backend == "a"


def test_a_part_of_an_axis_is_named_beside_it():
    """`axis` is the axis, as the reason's code is; which of its parts is meant stands beside it, also as text and JSON."""
    decision = decide(registry(backend("a", box=CASES["part"][0])))
    change = decision.nearest[0].changes[0]
    assert (change.axis, change.part) == (decision.candidate("a").reasons[0].code, "seq_k")
    assert str(change) == "seq_k 512 -> 100"
    assert Change.from_json(change.to_json()) == change
    assert "part" not in decide(registry(backend("a", box={"head_dim": [64]}))).nearest[0].changes[0].to_json()


def test_a_box_misses_axes_not_parts():
    """One axis missed in both its parts is one miss: fewer than two axes missed in one part each."""
    manifest = backend("a", box={"head_dim": [64], "softcap": [False]})
    manifest["capability"] += [{**BOX, "softcap": [True, False], "seq_len": {"max": 100}}]
    decision = decide(registry(manifest), request=request(softcap=2.0))
    assert {reason.code for reason in decision.candidate("a").reasons} == {"seq_len"}


def test_the_nearest_box_is_the_first_with_the_fewest_misses():
    """Reasons and changes come from the same box, and the reason names it."""
    manifest = backend("a", box={"head_dim": [64], "head_dim_v": [64]})
    manifest["capability"] += [
        {**manifest["capability"][0], "head_dim_v": [128]},
        {**manifest["capability"][0], "head_dim": [128]},
    ]
    decision = decide(registry(manifest))
    reason = decision.candidate("a").reasons[0]
    assert (reason.axis, reason.source) == ("head_dim", "register(a) [[capability]] 2")
    assert decision.nearest[0].changes[0].axis == "head_dim"


def test_a_fitting_backend_has_no_relaxation():
    """Only rejected backends are listed."""
    decision = decide(registry(backend("a"), backend("b", box={"dtype": ["float16"]})))
    assert [near.backend for near in decision.nearest] == ["b"]
