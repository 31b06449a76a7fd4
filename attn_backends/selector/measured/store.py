"""`StoredTimes`: measured times as ranking asks for them. A value: what is written later changes nothing in it.

A time counts for the very device, driver, torch, triton, backend version and sources that it was measured with. A bucket
counts only where everybody was tried who is eligible now, references apart: else a kernel that is new, or was changed
since, would lose to those that happen to have a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from attn_backends.selector.cost.model import ROOFLINE, sizes_within
from attn_backends.selector.cost.sequences import between_tiles, sequences_of, timed_within
from attn_backends.selector.measured.bucket import bucket_of
from attn_backends.selector.measured.machine import BackendKey, Machine, device_key
from attn_backends.selector.measured.neighbours import Place, between, corners
from attn_backends.selector.measured.row import CAPPED, OK, Row
from attn_backends.selector.times import Measured, predicted_times

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.registry.environment import Environment
    from attn_backends.registry.manifest import Manifest
    from attn_backends.request import Request
    from attn_backends.selector.cost.sequences import Sequences


Places = dict[Place, dict[str, Row]]  # the known places of one kind of call on one device: rows by place and backend


@dataclass(frozen=True, slots=True, eq=False)
class StoredTimes:
    """Rows of one machine's software, by device and kind."""

    machine: Machine
    kinds: dict[tuple[str, str], Places]
    token: Hashable
    _keys: dict[str, str] = field(default_factory=dict)  # by manifest digest: sources are read once
    _environments: dict[int, tuple[Environment, bool]] = field(
        default_factory=dict
    )  # by identity, whether it is this one
    _devices: dict[int, tuple[Device, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Mapping[str, Sequence[Row]], machine: Machine) -> StoredTimes:
        """From the rows of each device, in any order."""
        kinds: dict[tuple[str, str], Places] = {}
        for device, own in rows.items():
            for row in own:
                places = kinds.setdefault((device, row.bucket.kind), {})
                places.setdefault(row.bucket.place, {})[_versioned(row.backend, row.version, row.sources)] = row
        return cls(machine, kinds, _digest(rows, machine))

    def times(self, request: Request, device: Device) -> Mapping[str, float]:
        """Nothing: without the manifests nobody knows which times are stale. Ranking asks `measured`."""
        return {}

    def measured(
        self, manifests: Sequence[Manifest], request: Request, device: Device, environment: Environment
    ) -> Mapping[str, Measured]:
        """The times of these backends, which all fit; {} where the bucket is unknown, partly known, or undecided."""
        bucket = bucket_of(request)
        places = self.kinds.get((self._chip(device), bucket.kind))
        if places is None or not self._is_of(environment):
            return {}
        keys = {self._versioned(manifest): manifest for manifest in manifests}
        weights = {bucket.place: 1.0} if bucket.place in places else corners(bucket.place, places)
        known = {place: _known(places.get(place, {}), keys) for place in weights}
        if not known or not all(known.values()):
            return {}
        if not _behind(list(known.values()), manifests, request, device):
            return {}
        timed = between({place: _times(own) for place, own in known.items()}, weights)
        found = _moved(timed, manifests, request, device)
        at = min((row.at for own in known.values() for row in own.values() if row.status == OK), default="")
        by = "bucket" if len(weights) == 1 else "neighbours"
        return {name: Measured(ms, at, by) for name, ms in found.items()}

    def _chip(self, device: Device) -> str:
        known = self._devices.get(id(device))
        if known is None:
            known = self._devices[id(device)] = (device, device_key(device) or "")
        return known[1]

    def _is_of(self, environment: Environment) -> bool:
        known = self._environments.get(id(environment))
        if known is None:
            versions = {name: environment.version(name) for name in ("torch", "triton")}
            same = all(version in (None, getattr(self.machine, name)) for name, version in versions.items())
            known = self._environments[id(environment)] = (environment, same)
        return known[1]

    def _versioned(self, manifest: Manifest) -> str:
        found = self._keys.get(manifest.digest)
        if found is None:
            key = BackendKey.of(manifest)
            found = self._keys[manifest.digest] = _versioned(key.name, key.version, key.sources)
        return found


def _versioned(name: str, version: str, sources: str) -> str:
    return f"{name}\0{version}\0{sources}"


def _known(rows: Mapping[str, Row], wanted: Mapping[str, Manifest]) -> dict[str, Row]:
    """The rows of the wanted backends by name; {} where one that is no reference was never tried."""
    missing = [manifest for key, manifest in wanted.items() if key not in rows]
    if any(manifest.tier != "reference" for manifest in missing):
        return {}
    found = {manifest.name: rows[key] for key, manifest in wanted.items() if key in rows}
    return found if any(row.status == OK for row in found.values()) else {}


def _behind(
    places: Sequence[Mapping[str, Row]], manifests: Sequence[Manifest], request: Request, device: Device
) -> bool:  # fmt: skip
    """Whether those that were left out, as others are so much faster, are predicted behind the fastest of those timed.

    A calibration left them out among all that fitted then, by the predictions of that day; now others may be picked.
    """
    capped = [{name for name, row in rows.items() if row.status == CAPPED} for rows in places]
    if not any(capped):
        return True
    predicted = predicted_times(ROOFLINE, manifests, request, device)
    for rows, left_out in zip(places, capped, strict=True):
        times = _times(rows)
        fastest = predicted.get(min(times, key=lambda name: times[name]), 0.0)
        if any(predicted.get(name, inf) < fastest for name in left_out):
            return False
    return True


def _moved(
    found: Mapping[str, float], manifests: Sequence[Manifest], request: Request, device: Device
) -> Mapping[str, float]:
    """The times of a bucket of twofold lengths at those of the request, where it stands for new tokens between two edges of tiles.

    Each backend's time times what it is predicted to take there over what it is predicted for the sizes that were timed; as they are where one
    of them has no prediction.
    """
    here = sequences_of(request)
    if not between_tiles(here):
        return found
    heads = request.num_q_heads
    timed = timed_within(_top(request), heads)
    there = ROOFLINE.predict_over(manifests, request, device, timed)
    here_ms = ROOFLINE.predict_over(manifests, request, device, sizes_within(request, manifests))
    if not all(name in there for name in found):
        return found
    return {name: ms * here_ms[name] / there[name] for name, ms in found.items()}


def _top(request: Request) -> Sequences:
    """The sequences at the top of a measured bucket: powers of two."""
    count, new, keys = [1 << max(0, size - 1).bit_length() for size in (request.batch, request.seq_q, request.seq_k)]
    return ((count, new, keys),)


def _times(rows: Mapping[str, Row]) -> dict[str, float]:
    return {name: row.ms for name, row in rows.items() if row.status == OK and row.ms is not None}


def _digest(rows: Mapping[str, Sequence[Row]], machine: Machine) -> Hashable:
    """Identity of the contents; () where there are none, as ranking knows it."""
    if not any(rows.values()):
        return ()
    digest = hashlib.sha256(repr(machine).encode())
    for device in sorted(rows):
        digest.update(device.encode())
        for text in sorted(map(repr, rows[device])):
            digest.update(text.encode())
    return digest.hexdigest()[:16]
