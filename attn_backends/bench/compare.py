"""Two results files of one suite: the ratio of every time that both have, and which are beyond the spread of the two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attn_backends.bench.results import OK, Json, Results, ResultsError
from attn_backends.bench.summary import apart

LEAST = 0.02  # a change below this is none, however narrow the spreads


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One backend on one cell, then and now. `ratio` is now / then: above 1 is slower; None where one has no time."""

    cell: str
    backend: str
    then_ms: float | None
    now_ms: float | None
    ratio: float | None
    verdict: str  # same | faster | slower | new | gone

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        return asdict(self)


def compare(then: Results, now: Results) -> list[Change]:
    """Every cell and backend of either, in the order of `now`. Raises ResultsError for different suites or sizes."""
    for name in ("suite", "size"):
        if then.head.get(name) != now.head.get(name):
            raise ResultsError(f"--against: {name} {then.head.get(name)!r} is not {now.head.get(name)!r}")
    timing = "host_ms" if now.head["metric"] == "us" else "device_ms"
    old = {(cell["id"], backend): outcome for cell, backend, outcome in then.outcomes()}
    new = {(cell["id"], backend): outcome for cell, backend, outcome in now.outcomes()}
    tried = {cell["id"] for cell in now.cells.values()}
    keys = [*new, *(key for key in old if key not in new and key[0] in tried)]
    return [_change(key, old.get(key), new.get(key), timing) for key in keys]


def geometric_mean(changes: Sequence[Change]) -> float | None:
    """Of the ratios that there are."""
    logs = [math.log(change.ratio) for change in changes if change.ratio is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None


def differences_of(then: Results, now: Results) -> list[str]:
    """What the two runs did not have in common, besides the code: versions, device, method."""
    found = [
        f"{name}: {then.head.get(name)} -> {now.head.get(name)}"
        for name in ("device_name", "method")
        if then.head.get(name) != now.head.get(name)
    ]
    before, after = then.head.get("versions", {}), now.head.get("versions", {})
    found += [
        f"{package}: {before.get(package)} -> {after.get(package)}"
        for package in {**before, **after}
        if before.get(package) != after.get(package)
    ]
    return found


def _change(key: tuple[str, str], old: Json | None, new: Json | None, timing: str) -> Change:
    before, after = _times(old, timing), _times(new, timing)
    ratio = verdict = None
    if before and after:
        ratio = round(after["median"] / before["median"], 4)
        verdict = "same"
        if apart(before, after, LEAST):
            verdict = "slower" if ratio > 1 else "faster"
    elif before or after:
        verdict = "gone" if before else "new"
    return Change(
        cell=key[0], backend=key[1], then_ms=before and before["median"], now_ms=after and after["median"], ratio=ratio,
        verdict=verdict or "same",
    )  # fmt: skip


def _times(outcome: Json | None, timing: str) -> Any:
    return outcome[timing] if outcome is not None and outcome["status"] == OK else None
