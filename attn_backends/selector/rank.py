"""Ranking of the backends that fit, and which level decided.

explicit or scope > prefer > rank hook > measured > cost model > declared priority (larger first) > name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from attn_backends.registry.manifest import Manifest
    from attn_backends.selector.policy import Policy

CHOSEN = {
    "explicit": "was asked for by backend= or a pin",
    "scope": "was asked for by a scope",
    "prefer": "is preferred by the policy",
    "rank_hook": "was put first by a rank hook",
    "measured": "has the shortest measured time",
    "cost_model": "is faster by the cost model",
}
_LEVELS = ("prefer", "rank_hook", "measured", "cost_model", "priority", "priority")


class Grounds(NamedTuple):
    """What ranking may use; the times are empty where they must not count."""

    policy: Policy
    measured: Mapping[str, float]
    predicted: Mapping[str, float]
    hook_order: Sequence[str] = ()


def rank(manifests: Sequence[Manifest], grounds: Grounds) -> tuple[list[Manifest], str]:
    """(backends best first, the level that set the winner apart). `manifests` is not empty."""
    keyed = sorted(zip(_keys(manifests, grounds), manifests, strict=True))  # names differ: keys alone decide
    ordered = [manifest for _, manifest in keyed]
    winner = keyed[0][0]
    runner_up = keyed[1][0] if len(keyed) > 1 else None
    return ordered, _deciding_level(winner, runner_up)


def _keys(manifests: Sequence[Manifest], grounds: Grounds) -> list[tuple[float, float, float, float, int, str]]:
    prefer, hook_order = grounds.policy.prefer, grounds.hook_order
    measured, predicted, last = grounds.measured.get, grounds.predicted.get, math.inf
    return [
        (
            _position(manifest.name, prefer) if prefer else last,
            _position(manifest.name, hook_order) if hook_order else last,
            measured(name := manifest.name, last),
            predicted(name, last),
            -manifest.priority,
            name,
        )
        for manifest in manifests
    ]


def _position(name: str, order: Sequence[str]) -> float:
    return order.index(name) if name in order else math.inf


def _deciding_level(winner: Sequence[object], runner_up: Sequence[object] | None) -> str:
    """The first level on which the winner is placed, and placed before the runner-up."""
    for level, position in enumerate(winner):
        placed = position != math.inf or level >= 4
        if placed and (runner_up is None or position != runner_up[level]):
            return _LEVELS[level]
    return "priority"


def outranked_by(loser: Manifest, winner: Manifest, level: str) -> tuple[str, str, str]:
    """(got, want, message) of an `outranked` reason."""
    if level == "priority":
        got, want = f"priority {loser.priority}", f"priority {winner.priority} of {winner.name}"
        tie = " and the name decides" if loser.priority == winner.priority else ""
        return got, want, f"fits, but {winner.name} has priority {winner.priority} against {loser.priority}{tie}"
    return loser.name, winner.name, f"fits, but {winner.name} {CHOSEN.get(level, level)}"
