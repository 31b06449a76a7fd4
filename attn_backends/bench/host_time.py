"""Host time of cheap calls: many calls per sample, samples of all calls taken in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

ROUNDS, CALLS = 15, 4000


def host_times(
    named: Mapping[str, Callable[[], object]], *, rounds: int = ROUNDS, calls: int = CALLS
) -> dict[str, list[float]]:
    """Microseconds per call, one sample per round, by name."""
    samples: dict[str, list[float]] = {name: [] for name in named}
    for _ in range(rounds):
        for name, function in named.items():
            started = time.perf_counter()
            for _ in range(calls):
                function()
            samples[name].append((time.perf_counter() - started) / calls * 1e6)
    return samples
