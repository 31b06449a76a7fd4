"""`Roofline`: the cost model that selection ranks by where nothing was measured.

It predicts from declared shares of the device's peaks (`predict.py`), so it can say nothing of a backend that declares
none. Such a backend keeps its place by priority: where its priority is above that of every backend with a prediction, the
model says nothing at all, and priorities decide; else it comes after those with a prediction.

Ranking asks about a bucket, by its canonical request, for all calls in it: predicted is one size that stands for them, or the
geometric mean over several (`sequences.within`), so that no kernel is ranked by the waves of one size alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from attn_backends.selector.cost.load import subject_of, subject_of_sizes
from attn_backends.selector.cost.predict import predict, seconds
from attn_backends.selector.cost.sequences import sequences_of, within
from attn_backends.selector.tile_edges import begin_of, least_batch

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.registry.manifest import Manifest
    from attn_backends.request import Request
    from attn_backends.selector.cost.sequences import Sequences

VERSION = 6  # of the formulas: a decision made under others has another id
MILLISECONDS = 1e3


@dataclass(frozen=True, slots=True)
class Roofline:
    """Predicted times from the sizes of a request, the peaks of a device, and the shares that manifests declare."""

    token: Hashable = ("roofline", VERSION)

    def predict(self, manifest: Manifest, request: Request, device: Device) -> float | None:
        """Milliseconds; None for a device whose rates are unknown, or a backend that declares no efficiency."""
        subject = subject_of(request, device)
        found = None if subject is None else predict(manifest, subject)
        return None if found is None else found.seconds * MILLISECONDS

    def predict_together(self, manifests: Sequence[Manifest], request: Request, device: Device) -> Mapping[str, float]:
        """Milliseconds by name, over the bucket of the request; empty where the model does not rank these backends."""
        sizes = sizes_within(request, manifests)
        found = self.predict_over(manifests, request, device, sizes)
        return comparable(found, manifests) if found else {}

    def predict_over(
        self, manifests: Sequence[Manifest], request: Request, device: Device, sizes: tuple[Sequences, ...]
    ) -> dict[str, float]:
        """Geometric means in milliseconds over calls of these sizes, by name of those that declare efficiency."""
        able = [manifest for manifest in manifests if manifest.efficiency]
        subject = subject_of_sizes(request, device, sizes) if able else None
        if subject is None:
            return {}
        root = 1 / len(sizes)
        return {one.name: prod(seconds(one, subject)) ** root * MILLISECONDS for one in able}


def sizes_within(request: Request, manifests: Sequence[Manifest]) -> tuple[Sequences, ...]:
    """The sizes that stand for the bucket of a canonical request among these backends."""
    begin, fewest = begin_of(request.seq_q, manifests), least_batch(request.batch, request.seq_q, manifests)
    return within(sequences_of(request), request.num_q_heads, begin, fewest)


def comparable(times: Mapping[str, float], manifests: Sequence[Manifest]) -> Mapping[str, float]:
    """The times, or none at all where a backend that has none stands above all the others by its priority."""
    if len(times) == len(manifests):
        return times
    timed = max([one.priority for one in manifests if one.name in times], default=0)
    untimed = max([one.priority for one in manifests if one.name not in times])
    return times if timed >= untimed else {}


ROOFLINE = Roofline()
