"""The time that one backend is expected to take, from the shares of a device's peaks that its manifest declares.

    compute = hypot( FLOPs / (matrix rate * matrix share), exponentials / (exp rate * exp share) )
    memory  = bytes / (bandwidth * memory share)
    time    = max(compute, memory) + kernels * launch + ramp + start

FLOPs and exponentials are those of the tiles that a kernel computes, waves over the multiprocessors included (see `tiling.py`), or of every pair where the backend
materialises its scores; bytes are the necessary ones, those of scores in memory, and those of conversions. Products and
exponentials overlap in part: the hypotenuse lies between their sum and the larger one, and fits what was measured. In the
backward pass the matrix share is `backward`, where K or V is quantised the memory share is `quantized`, if declared.
`start` is the manifest's `start_us`: what a call of this backend takes however small it is, beyond the device's launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import hypot
from typing import TYPE_CHECKING, NamedTuple

from attn_backends.selector.cost.load import Load, Subject, converted, loads_of

if TYPE_CHECKING:
    from attn_backends.registry.manifest import Manifest

# Shares of a backend that declares some and not these.
MATRIX, EXP, MEMORY = 0.5, 0.75, 0.8


class Prediction(NamedTuple):
    """Seconds in all, and what they are made of."""

    seconds: float
    matrix: float
    exp: float
    memory: float
    launch: float

    @property
    def bound(self) -> str:
        """What the time is mostly spent on: matrix, exp, memory or launch."""
        parts = {"matrix": self.matrix, "exp": self.exp, "memory": self.memory, "launch": self.launch}
        return max(parts, key=lambda name: parts[name])


class Shares(NamedTuple):
    """Of a manifest, for products of one pass and memory of one kind; `start` in seconds."""

    matrix: float
    exp: float
    memory: float
    start: float


# What one pass of a backend is predicted from. By size: loads, and seconds of the conversions' bytes at the device's peak,
# none where nothing is converted. For all sizes: shares, and seconds of the conversions' kernels.
Pass = tuple[Sequence[Load], Shares, Sequence[float], float]


def predict(manifest: Manifest, subject: Subject) -> Prediction | None:
    """What a backend is expected to take for the passes of the subject; None where it declares no share of anything."""
    if not manifest.efficiency:
        return None
    made = [_prediction(one) for one in _passes(manifest, subject)]
    return made[0] if len(made) == 1 else Prediction(*map(sum, zip(*made, strict=True)))


def seconds(manifest: Manifest, subject: Subject) -> list[float]:
    """Those of `predict`, for every size of the subject; the backend declares a share of something."""
    if not subject.backward:
        return _seconds(*_forward(manifest, subject))
    return list(map(sum, zip(*[_seconds(*one) for one in _passes(manifest, subject)], strict=True)))


def _passes(manifest: Manifest, subject: Subject) -> list[Pass]:
    made: list[Pass] = []
    if subject.forward:
        made.append(_forward(manifest, subject))
    if subject.backward:
        stored, loads = loads_of(manifest, subject, backward=True)
        made.append((loads, _shares(manifest, "backward", stored), (), 0.0))
    return made


def _forward(manifest: Manifest, subject: Subject) -> Pass:
    stored, loads = loads_of(manifest, subject, backward=False)
    shares = _shares(manifest, "matrix", stored)
    names = subject.called.by(manifest)
    if not names:
        return loads, shares, (), 0.0
    return loads, shares, converted(subject, names), len(names) * subject.rates.launch


@lru_cache(maxsize=1024)
def _shares(manifest: Manifest, unit: str, stored: str) -> Shares:
    """`unit`: which share its products have; `stored`: which one its bytes have."""
    declared = manifest.efficiency
    return Shares(
        matrix=declared.get(unit) or declared.get("matrix", MATRIX),
        exp=declared.get("exp", EXP),
        memory=declared.get(stored) or declared.get("memory", MEMORY),
        start=manifest.start_us * 1e-6,
    )


def _prediction(one: Pass) -> Prediction:
    """Of the first size."""
    loads, shares, converting, launches = one
    matrix, exp, memory, start = loads[0]
    return Prediction(
        seconds=_seconds(*one)[0],
        matrix=matrix / shares.matrix,
        exp=exp / shares.exp,
        memory=(memory + sum(converting[:1])) / shares.memory,
        launch=start + shares.start + launches,
    )


def _seconds(loads: Sequence[Load], shares: Shares, converting: Sequence[float], launches: float) -> list[float]:
    """By size."""
    of_matrix, of_exp, of_memory, own = shares
    if not converting:
        return [
            max(hypot(matrix / of_matrix, exp / of_exp), memory / of_memory) + (start + own)
            for matrix, exp, memory, start in loads
        ]
    return [
        max(hypot(matrix / of_matrix, exp / of_exp), (memory + more) / of_memory) + (start + own + launches)
        for (matrix, exp, memory, start), more in zip(loads, converting, strict=True)
    ]
