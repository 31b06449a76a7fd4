"""Interleaved repeats: in every round each backend is sampled once, in an order that turns.

A clock that drifts or a chip that warms up meets all of them alike. A backend is sampled as often as fits into its share of time; a slow one sits out rounds, spread evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attn_backends.bench.clock import Clock
from attn_backends.bench.contender import Contender, failure
from attn_backends.bench.results import Json

WARM_UPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """How often: as many samples as take `share_ms` per backend, between `least` and `most`."""

    share_ms: float = 150.0
    least: int = 7
    most: int = 60

    def count(self, sample_ms: float) -> int:
        """Samples of a call that takes so long."""
        return max(self.least, min(self.most, int(self.share_ms / max(sample_ms, 1e-6))))


def take_rounds(contenders: Sequence[Contender], clock: Clock, repeats: Repeats) -> dict[str, Json]:
    """Fill the samples of every contender. Returns the records of those that raised meanwhile, by name."""
    failed: dict[str, Json] = {}
    counts: dict[str, int] = {}
    for one in contenders:
        estimate = _guarded(_warm_up, one, clock, failed)
        if estimate is not None:
            counts[one.name] = repeats.count(estimate)
    rounds = max(counts.values(), default=0)
    for number in range(rounds):
        first = number % len(contenders)
        for one in (*contenders[first:], *contenders[:first]):
            if one.name not in failed and _takes_part(number, counts[one.name], rounds):
                _guarded(_sample, one, clock, failed)
    return failed


def _warm_up(one: Contender, clock: Clock) -> float:
    """Milliseconds per sample, of the last warm-up; its host time is where the samples start from."""
    device_ms = host_ms = 0.0
    for _ in range(WARM_UPS):
        device_ms, host_ms = clock.sample(one.call, host_ms)
    one.facts["warm_host_ms"] = host_ms
    return max(device_ms, host_ms)


def _sample(one: Contender, clock: Clock) -> float:
    device_ms, host_ms = clock.sample(one.call, one.facts["warm_host_ms"])
    one.device_ms.append(device_ms)
    one.host_ms.append(host_ms)
    return device_ms


def _takes_part(number: int, count: int, rounds: int) -> bool:
    """Whether a backend with `count` samples is sampled in this round: evenly spread, the last round included."""
    return (number + 1) * count // rounds > number * count // rounds


def _guarded(
    act: Callable[[Contender, Clock], float], one: Contender, clock: Clock, failed: dict[str, Json]
) -> float | None:
    try:
        return act(one, clock)
    except Exception as error:  # noqa: BLE001  # whatever a backend raises is its result on this cell
        failed[one.name] = failure(error)
        return None
