"""Interleaving: everybody is sampled in turn, as often as its share of time allows, and a failure stays its own."""

from __future__ import annotations

from collections import Counter

from attn_backends.bench.contender import Contender
from attn_backends.bench.rounds import WARM_UPS, Repeats, take_rounds


class ScriptedClock:
    """Calls, and says how long that took by the backend's name."""

    method = "scripted"

    def __init__(self, times):
        self.times, self.seen = times, []

    def sample(self, call, host_ms):
        name = call()
        self.seen.append(name)
        return self.times[name], self.times[name] / 10


def contenders(*names):
    """Calls that say their names."""
    return [Contender(name, lambda name=name: name, {}) for name in names]


def test_rounds_take_turns_and_begin_with_another_each_time():
    """No backend is sampled twice in a row, and none is always first."""
    clock = ScriptedClock({"a": 1.0, "b": 1.0, "c": 1.0})
    take_rounds(contenders("a", "b", "c"), clock, Repeats(share_ms=9, least=1, most=9))
    timed = clock.seen[3 * WARM_UPS :]
    assert ["".join(timed[place : place + 3]) for place in range(0, 27, 3)] == ["abc", "bca", "cab"] * 3


def test_a_slow_backend_sits_out_evenly():
    """Its samples fit its share, and lie over the whole of the run."""
    clock = ScriptedClock({"fast": 1.0, "slow": 20.0})
    made = contenders("fast", "slow")
    take_rounds(made, clock, Repeats(share_ms=60, least=3, most=60))
    timed = clock.seen[2 * WARM_UPS :]
    assert Counter(timed) == {"fast": 60, "slow": 3}
    places = [place for place, name in enumerate(timed) if name == "slow"]
    assert places[0] < 22
    assert places[-1] == len(timed) - 1 or places[-1] == len(timed) - 2
    assert made[1].device_ms == [20.0] * 3
    assert made[1].host_ms == [2.0] * 3


def test_a_backend_that_raises_leaves_the_others_alone():
    """In the warm-up or later: it is recorded, the rest is sampled to the end."""

    def broken():
        raise ValueError("no more")

    calls = iter(range(100))

    def late():
        if next(calls) > WARM_UPS:
            raise ValueError("too late")
        return "late"

    made = [*contenders("good"), Contender("broken", broken, {}), Contender("late", late, {})]
    failed = take_rounds(made, ScriptedClock({"good": 1.0, "late": 1.0}), Repeats(share_ms=5, least=5, most=5))
    assert {name: outcome["status"] for name, outcome in failed.items()} == {"broken": "error", "late": "error"}
    assert failed["late"]["why"] == "ValueError: too late"
    assert len(made[0].device_ms) == 5
