"""The figures that are shown of an outcome: in the unit of its suite, with spread, beside the roofline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_backends.bench.results import OK, Json

UNITS = {"tflops": "TFLOP/s", "kv_gbs": "GB/s of K and V", "ms": "ms", "us": "us on the host"}
LARGER_IS_BETTER = ("tflops", "kv_gbs")


def times_of(outcome: Json, metric: str) -> Mapping[str, Any]:
    """The summary of times that a metric is about: the host's for `us`, else the device's."""
    times: Mapping[str, Any] = outcome["host_ms" if metric == "us" else "device_ms"]
    return times


def value_of(outcome: Json | None, metric: str) -> float | None:
    """The median in the metric's unit; None where it was not timed."""
    if outcome is None or outcome["status"] != OK:
        return None
    if metric in LARGER_IS_BETTER:
        rate: float | None = outcome[metric]
        return rate
    median: float = times_of(outcome, metric)["median"]
    return median * 1e3 if metric == "us" else median


def quartiles_of(outcome: Json, metric: str) -> tuple[float, float]:
    """(lower, upper) quartile in the metric's unit."""
    value, times = value_of(outcome, metric) or 0.0, times_of(outcome, metric)
    if not times["median"]:
        return value, value
    low, high = times["q25"] / times["median"], times["q75"] / times["median"]
    return (value / high, value / low) if metric in LARGER_IS_BETTER else (value * low, value * high)


def spread_of(outcome: Json, metric: str) -> float:
    """Half the quartile range over the median."""
    times = times_of(outcome, metric)
    return float((times["q75"] - times["q25"]) / 2 / times["median"]) if times["median"] else 0.0


def best_of(cell: Json, metric: str) -> str | None:
    """The backend with the best figure of a cell."""
    found = {str(name): value_of(outcome, metric) for name, outcome in cell["results"].items()}
    values = {name: value for name, value in found.items() if value is not None}
    if not values:
        return None
    sign = -1 if metric in LARGER_IS_BETTER else 1
    return min(values, key=lambda name: sign * values[name])


def roof_of(cell: Json, metric: str) -> float | None:
    """The roofline in the metric's unit; None where there is none."""
    floor = cell.get("floor")
    if floor is None or metric == "us":
        return None
    seconds: float = floor["seconds"]
    if metric == "tflops":
        return float(cell["flops"]) / seconds / 1e12
    return float(cell["kv_bytes"]) / seconds / 1e9 if metric == "kv_gbs" else seconds * 1e3


def digits(value: float) -> str:
    """Three or four digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"
