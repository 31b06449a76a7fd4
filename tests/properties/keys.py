"""The cache key of a request as the selector makes it, and the verdicts behind it."""

from __future__ import annotations

from typing import Any

from attn_backends import Registry, Request
from attn_backends.box import axis_values
from attn_backends.capability import TABLE, Row
from attn_backends.device import Device
from attn_backends.matching import MatchIndex
from attn_backends.selector.buckets import Buckets, declared_lengths
from attn_backends.selector.tile_edges import batch_edges, tile_edges

ODD = ({"max": 1000}, {"min": 66, "multiple_of": 3}, [127, 510], {"mod": 5, "rest": 2, "max": 4097})


def odd_registry() -> Registry:
    """The built-in backends, and a few whose limits on lengths are no powers of two."""
    made = Registry(autoload=False)
    box = {row.axis: "any" for row in TABLE if row.axis != "unknown_feature"} | {"alignment": 1}
    for number, allowed in enumerate(ODD):
        made.register({"name": f"odd_keys_{number}", "capability": [{**box, "seq_q": "any", "seq_k": allowed}]}, print)
        made.register({"name": f"odd_both_{number}", "capability": [{**box, "seq_len": allowed}]}, print)
    return made


class Keys:
    """Keys and verdicts over the backends of one registry."""

    def __init__(self, registry: Registry, table: tuple[Row, ...] = TABLE) -> None:
        manifests = registry.snapshot().manifests
        self.table = table
        self.names = tuple(manifest.name for manifest in manifests)
        limits = declared_lengths([box for m in manifests for box in m.boxes], table)
        self.buckets = Buckets(limits, table, cuts={"seq_q": tile_edges(manifests), "batch": batch_edges(manifests)})
        self.index = MatchIndex([manifest.boxes for manifest in manifests], table)

    def values(self, request: Request, device: Device) -> tuple[Any, ...]:
        """The request on every axis."""
        return axis_values(request, device, self.table)

    def key(self, request: Request, device: Device) -> tuple[Any, ...]:
        """The bucketed key."""
        return self.buckets.key(request, self.values(request, device))

    def verdicts(self, request: Request, device: Device) -> list[tuple[str, Any]]:
        """Per backend the box that counts and what is missed there."""
        return [(v.box.source, v.misses) for v in self.index.match(self.values(request, device))]
