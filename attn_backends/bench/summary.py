"""`Summary`: what is kept of repeated times: median, quartiles, minimum, and how many there were."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Of samples in one unit."""

    median: float
    q25: float
    q75: float
    least: float
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        """Raises ValueError without samples."""
        if not samples:
            raise ValueError("no samples")
        if len(samples) == 1:
            return cls(median=samples[0], q25=samples[0], q75=samples[0], least=samples[0], count=1)
        q25, median, q75 = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median=median, q25=q25, q75=q75, least=min(samples), count=len(samples))

    def to_json(self) -> dict[str, float]:
        """Six significant digits."""
        return {name: float(f"{value:.6g}") if name != "count" else value for name, value in asdict(self).items()}


def apart(one: dict[str, float], other: dict[str, float], least: float) -> bool:
    """Whether two summaries differ beyond their spread: quartile ranges that do not touch, and by `least` at least."""
    ratio = other["median"] / one["median"]
    if 1 / (1 + least) <= ratio <= 1 + least:
        return False
    return other["q25"] > one["q75"] or other["q75"] < one["q25"]
