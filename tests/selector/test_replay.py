"""Deciding a record again: the same where nothing changed, every difference in words where something did."""

from __future__ import annotations

import pytest

from attn_backends import Decision, Environment, ReferenceForbiddenError, use
from attn_backends.selector.select import use_measurements
from attn_backends.selector.times import FixedTimes
from tests.selector.scenes import backend, decide, registry, request

MADE = registry(backend("a", priority=1), backend("b", priority=2, requires=["torch>=2.6"]))


def test_nothing_changed():
    """A replay on the same registry is the same decision."""
    decision = decide(MADE)
    replay = decision.replay()
    assert replay.same
    assert replay.decision.id == decision.id


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (registry(backend("a", priority=1)), {"backend: b -> a", "b: gone"}),
        (registry(backend("a", priority=3), backend("b", priority=2)), {"backend: b -> a"}),
        (registry(backend("a"), backend("b", priority=2), backend("c", priority=9)), {"backend: b -> c", "c: new, selected"}),
        (registry(backend("a"), backend("b", priority=2, version="2.0")), {"b: version 0 -> 2.0"}),
        (registry(backend("a"), backend("b", box={"head_dim": [64]})), {"backend: b -> a", "b: fits -> head_dim"}),
    ],
    ids=["gone", "priority", "new", "version", "boxes"],
)  # fmt: skip
def test_every_difference_is_said(other, said):
    """Gone, new, other winners, other versions and other reasons are told apart."""
    replay = decide(MADE).replay(registry=other)
    assert set(replay.differences) == said


def test_another_environment_is_a_difference():
    """Replayed for other package versions, a requirement that no longer holds is said."""
    replay = decide(MADE).replay(environment=Environment.pretend(torch="2.4"))
    assert "b: fits -> requirement" in replay.differences


def test_a_scoped_decision_stands():
    """What a scope chose is replayed as a scope's choice, whatever is open now."""
    with use("a"):
        decision = decide(MADE)
    assert decision.source == "scope"
    for replay in (decision.replay(), _inside("b", decision)):
        assert replay.same, replay.differences
        assert replay.decision.id == decision.id


def _inside(name, decision):
    with use(name):
        return decision.replay()


def test_scopes_open_now_are_no_part_of_the_record():
    """A plain decision replayed inside a scope is still a plain decision."""
    assert _inside("a", decide(MADE)).same


def test_a_refused_decision_replays_without_raising():
    """The record of a forced unfit backend, and of a forbidden reference, can be decided again."""
    with pytest.raises(Exception, match="softcap") as unfit:
        decide(MADE, backend="a", request=request(softcap=2.0))
    made = registry(backend("ref", tier="reference"))
    with pytest.raises(ReferenceForbiddenError) as forbidden:
        decide(made, {"forbid_reference": True})
    for caught in (unfit, forbidden):
        assert caught.value.decision.replay().same


def test_a_forced_backend_that_is_gone_is_a_difference():
    """A record that forces a name nobody has any more says so."""
    replay = decide(MADE, backend="b").replay(registry=registry(backend("a")))
    assert len(replay.differences) == 1
    assert "gone" in replay.differences[0]


def test_a_record_of_another_schema_is_refused():
    """`from_json` reads its own schema and says which one it got."""
    with pytest.raises(ValueError, match=r"attn\.decision/2"):
        Decision.from_json({"schema": "attn.decision/2"})


def test_the_times_of_the_record_rank_again():
    """A decision by measured times is replayed with those times, also from JSON, whatever store there is now."""
    decision = decide(MADE, measurements=FixedTimes.of({"a": 1.0, "b": 2.0}))
    assert (decision.backend, decision.source) == ("a", "measured")
    use_measurements(FixedTimes.of({"b": 1.0}))
    try:
        assert decision.replay().same
        assert Decision.from_json(decision.to_json()).replay(registry=MADE).same
        assert decide(MADE, measurements=FixedTimes()).replay().same
    finally:
        use_measurements(None)


def test_knobs_of_today_are_no_part_of_the_record(monkeypatch):
    """A replay obeys the knobs that were set when the decision was made, not those that are set now."""
    plain = decide(MADE)
    monkeypatch.setenv("ATTN_BACKENDS_BLOCK", "b")
    blocked = decide(MADE)
    assert plain.replay().same
    monkeypatch.delenv("ATTN_BACKENDS_BLOCK")
    assert (blocked.backend, blocked.replay().same) == ("a", True)
