"""Recorded figures of other kernels on a like machine: a run in which one of them is slower than recorded is void.

A figure file is a JSON list of records, each with `kind`, `peer`, the shape, and `ms` (`graph_ms` where the call was
replayed from a graph, which leaves the host out as the events here do). Several records of one peer and shape count as
their median. What they are called here stands in `peers.toml`.
"""

from __future__ import annotations

import json
import statistics
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from attn_backends.bench.results import OK, Json, Results, ResultsError

SLACK = 1.10  # a peer that takes longer than this times its recorded time voids the run

Figures = dict[tuple[str, str, str], float]  # (suite, cell, backend) -> milliseconds


def read_figures(path: Path) -> Figures:
    """Recorded times by suite, cell and backend. Raises ResultsError for a file of another form."""
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
        found: dict[tuple[str, str, str], list[float]] = {}
        for record in records:
            if (key := _key(record)) is not None:
                found.setdefault(key, []).append(float(record.get("graph_ms") or record["ms"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ResultsError(f"{path.name}: not a file of recorded figures: {type(error).__name__}: {error}") from None
    return {key: statistics.median(times) for key, times in found.items()}


def own_backends() -> tuple[str, ...]:
    """The backends whose kernels are this package's own; the others are peers."""
    return tuple(_names()["own"])


def judge(results: Results, figures: Figures, name: str) -> Json:
    """What the figures say of a run: how many times could be compared, which were too slow, and whether that voids it.

    A peer that is recorded and was tried but not timed is too slow as well.
    """
    compared: list[Json] = []
    for cell, backend, outcome in results.outcomes():
        recorded = figures.get((results.head["suite"], cell["id"], backend))
        if recorded is None:
            continue
        took = outcome["device_ms"]["median"] if outcome["status"] == OK else None
        ratio = None if took is None else round(took / recorded, 4)
        compared.append(
            {
                "cell": cell["id"],
                "backend": backend,
                "ms": took,
                "recorded_ms": recorded,
                "ratio": ratio,
                "status": outcome["status"],
            }
        )
    slower = [one for one in compared if one["ratio"] is None or one["ratio"] > SLACK]
    return {"file": name, "slack": SLACK, "compared": len(compared), "slower": slower, "void": bool(slower)}


def void_words(verdict: Json) -> str | None:
    """One sentence about a void run; None where it stands."""
    if not verdict["void"]:
        return None
    worst = max(verdict["slower"], key=lambda one: one["ratio"] or float("inf"))
    by = f"took {worst['ratio']:.2f} times what is recorded" if worst["ratio"] else f"was not timed ({worst['status']})"
    return (
        f"void: {len(verdict['slower'])} of {verdict['compared']} recorded times of peers were missed by more than "
        f"{SLACK - 1:.0%}; {worst['backend']} on {worst['cell']} {by}"
    )


@cache
def _names() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("peers.toml").read_text(encoding="utf-8"))


def _key(record: Json) -> tuple[str, str, str] | None:
    """What a record is called here; None for a peer or a kind that is not run here."""
    names = _names()
    kind = names["kinds"].get(record["kind"])
    if kind is None:
        return None
    words = {
        **record,
        "mask": "causal" if record.get("causal") else "full",
        "store": names["stores"].get(record.get("kv")),
    }
    backend = names["backends"].get(record["kind"], {}).get(record["peer"])
    return None if backend is None else (kind["suite"], kind["cell"].format(**words), backend)
