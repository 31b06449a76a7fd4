"""The time that one backend is expected to take, from the shares of a device's peaks that its manifest declares.

    compute = hypot( FLOPs / (matrix rate * matrix share), exponentials / (exp rate * exp share) ) / occupancy
    memory  = bytes / (bandwidth * memory share)
    time    = max(compute, memory) + kernels * launch + ramp + start

FLOPs and exponentials are those of the tiles that a kernel computes (see `extent.py`), or of every pair where the backend
materialises its scores; bytes are the necessary ones, those of scores in memory, and those of conversions. Products and
exponentials overlap in part: the hypotenuse lies between their sum and the larger one, and fits what was measured. In the
backward pass the matrix share is `backward`, where K or V is quantised the memory share is `quantized`, if declared.
`start` is the manifest's `start_us`: what a call of this backend takes however small it is, beyond the device's launch.
"""

from __future__ import annotations

from math import hypot
from typing import TYPE_CHECKING, NamedTuple

from attn_backends.selector.cost import traffic
from attn_backends.selector.cost.load import Load, Subject, load_of

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


def predict(manifest: Manifest, subject: Subject) -> Prediction | None:
    """What a backend is expected to take for the passes of the subject; None where it declares no share of anything."""
    if not manifest.efficiency:
        return None
    if not subject.backward:
        return _forward(manifest, subject)
    back = _time(manifest, load_of(manifest, subject, backward=True), "backward", 0.0, 0)
    if not subject.forward:
        return back
    return Prediction(*[one + other for one, other in zip(_forward(manifest, subject), back, strict=True)])


def _forward(manifest: Manifest, subject: Subject) -> Prediction:
    load = load_of(manifest, subject, backward=False)
    names = subject.called.by(manifest) if manifest.converts else ()
    if not names:
        return _time(manifest, load, "matrix", 0.0, 0)
    moved = traffic.converted(names, subject.request, subject.extent)
    return _time(manifest, load, "matrix", moved / subject.rates.memory, len(names))


def _time(manifest: Manifest, load: Load, unit: str, converting: float, conversions: int) -> Prediction:
    """`unit`: which share its products have; `converting`: seconds of the conversions' bytes at the device's peak."""
    share = manifest.efficiency
    matrix = load.matrix / (share.get(unit) or share.get("matrix", MATRIX))
    exp = load.exp / share.get("exp", EXP)
    memory = (load.memory + converting) / (share.get(load.stored) or share.get("memory", MEMORY))
    launch = load.start + manifest.start_us * 1e-6 + conversions * load.launch
    return Prediction(max(hypot(matrix, exp), memory) + launch, matrix, exp, memory, launch)
