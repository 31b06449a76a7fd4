"""Two runs against each other: only what changed, the worse first."""

from __future__ import annotations

import pytest

from attn_backends.conformance.report.track import track
from tests.conformance.records import PLAIN, record, result, wide_record

OTHER = PLAIN.replace(seed=1)
THIRD = PLAIN.replace(seed=2)


def test_equal_runs_say_nothing():
    """Not one line."""
    assert track(wide_record(), wide_record()) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ([result()], [result("FAIL")], [("outcome", "PASS", "FAIL", True)]),
        ([result("SILENT_WRONG")], [result("REFUSED")], [("outcome", "SILENT_WRONG", "REFUSED", False)]),
        ([result("REFUSED")], [result("UNDERCLAIM")], [("outcome", "REFUSED", "UNDERCLAIM", True)]),
        ([result("REFUSED")], [result()], [("outcome", "REFUSED", "PASS", False)]),
        ([result()], [result("REFUSED")], [("outcome", "PASS", "REFUSED", False)]),
        ([result()], [result("NOT_RUN")], [("outcome", "PASS", "NOT_RUN", True)]),
        ([result(), result(case=OTHER)], [result()], [("gone", "PASS", "-", True)]),
        ([result(), result("FAIL", OTHER)], [result()], [("gone", "FAIL", "-", False)]),
        ([result()], [result(), result("FAIL", OTHER)], [("new", "-", "FAIL", True)]),
        ([result()], [result(), result(case=OTHER)], [("new", "-", "PASS", False)]),
        ([result(ratios={"row": 0.4})], [result(ratios={"row": 0.59})], []),
        ([result(ratios={"row": 0.4})], [result(ratios={"row": 0.61})], [("ratio", "0.400", "0.610", True)]),
        ([result(ratios={"row": 0.0})], [result(ratios={"row": 0.04})], []),
        ([result(ratios={"row": 0.0})], [result(ratios={"row": 0.06})], [("ratio", "0.000", "0.060", True)]),
        ([result(ratios={"row": 0.9})], [result(ratios={"row": 0.1})], []),
        ([result()], [result(ratios={"row": 0.9})], []),
        ([result("REFUSED", ratios={"row": 20.0})], [result("REFUSED", ratios={"row": 90.0})], []),
    ],
    ids=["fails now", "fixed", "underclaims now", "served now", "refused now", "not run now", "gone", "gone failure", "new failure",
         "new", "slightly worse", "worse by half", "noise", "no noise", "better", "measured now", "refused as before"],
)  # fmt: skip
def test_only_what_changed(old, new, said):
    """Kind, before, after, and whether the newer run is the weaker."""
    changes = track(record(*old), record(*new))
    assert [(one.kind, one.old, one.new, one.worse) for one in changes] == said


def test_what_waits_for_other_hardware_hides_nothing():
    """A case of a CPU's box and of a GPU's box stands twice in a report: as it ran here, and as not run there."""
    old, new = (record(result(word), result("NOT_RUN", message="needs sm_90")) for word in ("PASS", "FAIL"))
    assert [(one.old, one.new) for one in track(old, new)] == [("PASS", "FAIL")]


def test_declarations_and_notes_are_tracked():
    """Declaring less is a change, and so is a note that fails the run."""
    old = record(volume={"dtype": "{float32}", "sinks": "{false, true}"})
    new = record(volume={"dtype": "{float16, float32}"}, notes=("error: gap a has expired", "a remark"))
    said = [(one.kind, one.subject, one.worse) for one in track(old, new)]
    assert said == [("declared", "sinks", True), ("declared", "dtype", False), ("note", "gap a has expired", True)]


def test_the_worse_stand_first():
    """Within a kind."""
    changes = track(record(result("FAIL"), result(case=OTHER)), record(result(), result("CRASH", OTHER)))
    assert [one.worse for one in changes] == [True, False]
    assert str(changes[0]) == f"! outcome  value/{OTHER.id}: PASS -> CRASH"
