"""Ranking: each level beats the ones below it, and the source says which one decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from attn_backends import add_hooks, hookimpl, remove_hooks
from attn_backends.selector.select import use_cost_model, use_measurements
from attn_backends.selector.times import FixedTimes
from tests.selector.scenes import backend, decide, registry, request


@dataclass(frozen=True)
class Model:
    """Predicts what it is told."""

    token: Any
    times: tuple[tuple[str, float], ...]

    def predict(self, manifest, request, device):
        return dict(self.times).get(manifest.name)


class Order:
    """A rank hook that wants c first."""

    @hookimpl
    def attn_backends_rank(self, request, candidates):
        return ["c", "nobody"]


@pytest.fixture
def model():
    use_cost_model(Model("m", (("a", 1.0), ("b", 2.0))))
    yield
    use_cost_model(None)


@pytest.fixture
def hook():
    name = add_hooks(Order(), "order")
    yield name
    remove_hooks(name)


MADE = registry(backend("a", priority=1), backend("b", priority=2), backend("c", priority=3))
ALL_THE_SAME = registry(backend("z"), backend("y"), backend("x"))


@pytest.mark.parametrize(
    ("made", "times", "policy", "asked", "winner", "source"),
    [
        (ALL_THE_SAME, {}, {}, None, "x", "priority"),
        (MADE, {}, {}, None, "c", "priority"),
        (MADE, {"b": 3.0, "a": 5.0}, {}, None, "b", "measured"),
        (MADE, {"b": 3.0, "a": 5.0}, {"prefer": ["a"]}, None, "a", "prefer"),
        (MADE, {"b": 3.0}, {"prefer": ["nobody"]}, None, "b", "measured"),
        (MADE, {"a": 1.0}, {"prefer": ["b"], "pin": "c"}, None, "c", "explicit"),
        (MADE, {"a": 1.0}, {"prefer": ["b"]}, "c", "c", "explicit"),
        (MADE, {"a": float("nan"), "b": -1.0}, {}, None, "c", "priority"),
        (MADE, {"a": 4.0, "b": 4.0}, {}, None, "b", "priority"),
    ],
    ids=[
        "name", "priority", "measured", "prefer", "prefer-unknown", "pin", "explicit", "no-real-times", "times-tie",
    ],
)  # fmt: skip
def test_levels_and_their_sources(made, times, policy, asked, winner, source):
    """explicit > prefer > measured > priority > name; `source` is the level that set the winner apart."""
    decision = decide(made, policy, measurements=FixedTimes.of(times), backend=asked)
    assert (decision.backend, decision.source) == (winner, source)


def test_the_cost_model_beats_priority_and_loses_to_measurements(model):
    """Predicted times rank below measured ones, and both stand in the record."""
    predicted = decide(MADE)
    assert (predicted.backend, predicted.source) == ("a", "cost_model")
    assert predicted.candidate("b").predicted_ms == 2.0
    measured = decide(MADE, measurements=FixedTimes.of({"b": 9.0}))
    assert (measured.backend, measured.source) == ("b", "measured")
    assert measured.candidate("b").measured_ms == 9.0


def test_under_batch_invariant_no_time_counts(model):
    """What may depend on the batch does not rank a batch-invariant call."""
    made = registry(*(backend(n, priority=p, box={"batch_invariant": "any"}) for n, p in (("a", 1), ("b", 2))))
    decision = decide(made, request=request(batch_invariant=True), measurements=FixedTimes.of({"a": 1.0}))
    assert (decision.backend, decision.source) == ("b", "priority")


def test_a_rank_hook_acts_only_when_named(hook):
    """A hook that is installed changes nothing until the policy names it; then it ranks above measured time."""
    times = FixedTimes.of({"a": 1.0})
    assert decide(MADE, measurements=times).backend == "a"
    named = decide(MADE, {"rank_hooks": [hook]}, measurements=times)
    assert (named.backend, named.source) == ("c", "rank_hook")
    assert decide(MADE, {"rank_hooks": ["somebody-else"]}, measurements=times).backend == "a"
    assert decide(MADE, {"rank_hooks": [hook], "prefer": ["b"]}, measurements=times).source == "prefer"


def test_process_wide_measurements_count_from_the_moment_they_are_given():
    """`use_measurements` changes the next decision, and None takes them away again."""
    try:
        use_measurements(FixedTimes.of({"a": 1.0}))
        assert decide(MADE).backend == "a"
    finally:
        use_measurements(None)
    assert decide(MADE).backend == "c"


def test_everybody_has_a_rank():
    """The winner is first, the others follow in order and say who was before them."""
    decision = decide(MADE)
    assert [(c.name, c.rank, c.status) for c in decision.candidates] == [
        ("c", 1, "selected"), ("b", 2, "outranked"), ("a", 3, "outranked"),
    ]  # fmt: skip
    assert "priority 3" in str(decision.candidate("a").reasons[0])


def test_a_forced_unfit_backend_names_who_would_fit():
    """The error lists the reasons with values, the fitting ones and the smallest change."""
    made = registry(backend("narrow", box={"head_dim": [64]}), backend("wide"))
    with pytest.raises(Exception, match="narrow") as caught:
        decide(made, backend="narrow")
    assert all(word in str(caught.value) for word in ("head_dim", "128", "{64}", "wide", "head_dim 128 -> 64"))
    assert "\n  head_dim: got 128" in str(caught.value)  # the code once, where it is the axis
