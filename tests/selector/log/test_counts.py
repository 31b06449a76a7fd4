"""Statistics and comparison of runs."""

from __future__ import annotations

import json

import pytest

from attn_backends.selector.log.compare import diff, diff_text
from attn_backends.selector.log.counts import stats, stats_text
from tests.selector.log.records import candidate, many, reason, record, request, unserved

EAGER = record(
    id="ee" * 8, backend="eager", source="explicit", candidates=[candidate("eager", "selected"), candidate("flex")]
)


def test_counts() -> None:
    """Backends, sources, reference share (of what was served), refusals, distinct requests."""
    counted = stats([record(), record(), EAGER, unserved(request=request(batch=5))])
    assert counted.to_json() == {
        "records": 4,
        "decisions": 3,
        "requests": 2,
        "processes": 0,
        "first": None,
        "last": None,
        "backends": {"sdpa_flash": 2, "eager": 1, "none": 1},
        "sources": {"priority": 2, "explicit": 1},
        "devices": {"H200 sm_90": 4},
        "reference": 1,
        "reference_share": pytest.approx(1 / 3),
        "unserved": 1,
        "rejections": {"flex": {"head_dim": 4}},
    }
    assert json.loads(json.dumps(counted.to_json()))["records"] == 4


def test_a_code_counts_once_per_record() -> None:
    """Two reasons of one code in one refusal are one refusal; the most frequent code comes first."""
    twice = candidate("flex", reasons=[reason("head_dim"), reason("head_dim"), reason("arch")])
    once = candidate("flex", reasons=[reason("arch")])
    rejections = stats([record(candidates=[twice]), record(candidates=[once])]).rejections
    assert list(rejections["flex"].items()) == [("arch", 2), ("head_dim", 1)]


def test_nothing_to_count() -> None:
    """An empty log has counts too."""
    assert stats([]).to_json()["reference_share"] == 0
    assert "records    0" in stats_text(stats([]))


def test_the_text_has_the_numbers() -> None:
    """Aligned plain text, the most frequent first."""
    text = stats_text(stats([record(), EAGER]), top=1)
    assert "  eager       1  50.0%" in text
    assert "  flex  head_dim 2" in text
    assert "reference  1 (50.0% of what was served)" in text
    assert "200 distinct" in stats_text(stats(many(200)))


# --- diff -------------------------------------------------------------------------------------------------------------

OTHER = request(head_dim_qk=64, head_dim_v=64)
SERVED_BY_FLEX = record(
    backend="flex",
    policy={"prefer": ["flex"]},
    source="prefer",
    environment={"driver": "580.1", "versions": {"torch": "2.14.0"}},
    candidates=[candidate("flex", "selected"), candidate("sdpa_flash", reasons=[reason("requirement")])],
)


def test_equal_runs_do_not_differ() -> None:
    """Ids, times, order and repetition do not matter; who serves what does."""
    a = many(30)
    b = [{**one, "id": "00" * 8, "time": "2027-01-01T00:00:00.000000+00:00"} for one in reversed(a)]
    found = diff(a, [*b, *b])
    assert (found.changed, found.only_a, found.only_b) == ((), (), ())


def test_what_changed_and_why() -> None:
    """The backends that stand differently with the reasons that came and went, and the inputs that moved."""
    found = diff([record()], [SERVED_BY_FLEX])
    (change,) = found.changed
    assert {turn.name: (turn.before, turn.after) for turn in change.turns} == {
        "sdpa_flash": ("selected", "rejected"),
        "sdpa_math": ("outranked", "absent"),
        "flex": ("rejected", "selected"),
    }
    by_name = {turn.name: turn for turn in change.turns}
    assert [one["code"] for one in by_name["flex"].gone] == ["head_dim"]
    assert [one["code"] for one in by_name["sdpa_flash"].new] == ["requirement"]
    assert change.inputs == (
        "torch 2.13.0 -> 2.14.0", "triton 3.4.0 -> none", "driver 570.86 -> 580.1", "policy: default -> prefer=(flex)",
    )  # fmt: skip


@pytest.mark.parametrize(
    "moved",
    [{"request": OTHER}, {"device": {"kind": "cuda", "name": "H100", "arch": [9, 0]}}],
    ids=["request", "device"],
)
def test_only_in_one(moved: dict) -> None:
    """Another request, or the same on another device, is another question."""
    found = diff([record()], [record(**moved)])
    assert (found.same, len(found.changed), len(found.only_a), len(found.only_b)) == (0, 0, 1, 1)


def test_a_request_met_twice_is_compared_by_all_its_answers() -> None:
    """A run that also forced a backend once does not differ from a run that did so in another order."""
    assert diff([record(), EAGER], [EAGER, record()]).same == 1
    (change,) = diff([record(), EAGER], [EAGER, SERVED_BY_FLEX]).changed
    assert (change.before["backend"], change.after["backend"]) == ("sdpa_flash", "flex")


def test_the_diff_as_json_and_text() -> None:
    """Both say the same: who served, who serves, and the reasons."""
    found = diff([record(), record(request=OTHER)], [SERVED_BY_FLEX])
    plain = json.loads(json.dumps(found.to_json()))
    assert plain["changed"][0]["turns"][0]["name"] == "sdpa_flash"
    text = diff_text(found, a="monday", b="tuesday")
    assert text.startswith("1 requests in both: 0 answered alike, 1 differently\n1 only in monday, 0 only in tuesday\n")
    assert "backend     sdpa_flash (priority) -> flex (prefer)" in text
    assert "- head_dim: got 320, want {64, 128}" in text
    assert "+ requirement: got 320, want {64, 128}" in text
