"""Who is worth timing on a call: those that the cost model predicts near the best. No torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attn_backends.selector.decision import Candidate

LEAST = 2  # so many of the best predictions are timed, however far apart they are
BEHIND = "times the best prediction"  # ends the reason of one that was not timed for it


def far_behind(candidates: Sequence[Candidate], factor: float, kept: Collection[str] = ()) -> dict[str, float]:
    """Those that are predicted to take more than `factor` times the best: how many times. {} without predictions.

    The best is one of exact numerics, as all calls may use those. Never far behind: the LEAST best of these, who has no
    prediction, and who is `kept`.
    """
    predicted = {one.name: one.predicted_ms for one in candidates if one.predicted_ms is not None}
    exact = [one.name for one in candidates if one.numerics == "exact" and one.name in predicted]
    order = sorted(exact or predicted, key=lambda name: predicted[name])
    if not order:
        return {}
    least = predicted[order[0]]
    spared = {*order[:LEAST], *kept}
    return {name: ms / least for name, ms in predicted.items() if ms > factor * least and name not in spared}


def lead(candidates: Sequence[Candidate]) -> float:
    """The second-best prediction over the best, of exact numerics; 1 where there are not two."""
    found = sorted(one.predicted_ms for one in candidates if one.numerics == "exact" and one.predicted_ms is not None)
    return found[1] / found[0] if len(found) > 1 else 1.0
