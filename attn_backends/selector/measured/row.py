"""`Row`: one backend in one bucket: how long it took, or why there is no time. And which times are possible at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from attn_backends.selector.measured.bucket import Bucket

OK, CAPPED = "ok", "capped"
# Why there is no time: what bench says of a contender, and what can happen to a worker process.
FAILED = (
    "refused", "wrong", "error", "out_of_memory", "device_lost", "crash", "timeout", "excluded", CAPPED,
)  # fmt: skip
STATUSES = (OK, *FAILED)
FLOOR_SHARE = 0.5  # of the roofline's floor; what is below is no time of that work on that device
LEAST_MS, MOST_MS = 1e-4, 1e7  # no kernel runs for less than 0.1 us; none that is measured, for hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Milliseconds: the median and the quartiles of `samples`; None where `status` is not ok.

    floor_ms: what no kernel could beat; None where the device's peaks are unknown. at: UTC, ISO.
    """

    bucket: Bucket
    backend: str
    version: str
    sources: str
    status: str
    ms: float | None = None
    q25: float | None = None
    q75: float | None = None
    samples: int = 0
    floor_ms: float | None = None
    why: str = ""
    at: str = ""

    def possible(self) -> bool:
        """Whether it can be true: texts, a known status, and times that are finite, ordered and of a kernel's size."""
        texts = (self.backend, self.version, self.sources, self.why, self.at)
        if self.status not in STATUSES or not all(isinstance(text, str) for text in texts):
            return False
        if self.status != OK:
            return True
        times = (self.q25, self.ms, self.q75)
        if not all(map(_is_time, times)) or sorted(times, key=_number) != list(times) or not _count(self.samples):
            return False
        if self.floor_ms is None:
            return True
        return type(self.floor_ms) in (int, float) and _number(self.ms) >= FLOOR_SHARE * self.floor_ms


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and LEAST_MS <= value <= MOST_MS


def _number(value: Any) -> float:
    return float(value)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 1
