"""A new property of requests is one row in the table, and makes no old backend eligible for it."""

from __future__ import annotations

import random
from typing import Any

from attn_backends import Registry, Request, select
from attn_backends.box import axis_values
from attn_backends.capability import TABLE, Row
from attn_backends.device import Device
from attn_backends.fields import FLAG, Field
from attn_backends.request_fields import fields_of, make_record
from attn_backends.values import FLAGS
from tests.properties.drawing import draw_device, draw_request
from tests.properties.keys import Keys

MOON = Row(
    axis="moon", kind=FLAGS, doc="a property of tomorrow", fields=(Field("moon", FLAG, False),), neutral=False,
    plain="moon", read=lambda request, _device: request.moon,
)  # fmt: skip
WIDER = (*TABLE, MOON)


class Tomorrow(Request):
    """A request of the version that knows the new property."""

    __slots__ = ("moon",)

    def __init__(self, *, moon: bool = False, **values: Any) -> None:
        super().__init__(**values)
        object.__setattr__(self, "moon", moon)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tomorrow) and self.moon == other.moon and super().__eq__(other)

    def __hash__(self) -> int:
        return hash((self.moon, super().__hash__()))

    def replace(self, **changes: Any) -> Tomorrow:
        plain = Request(**{field.name: getattr(self, field.name) for field in fields_of(TABLE)}).replace(**changes)
        return tomorrow(plain, moon=self.moon)

    def resized(self, **lengths: int) -> Tomorrow:
        return self.replace(**lengths)


def tomorrow(request: Request, *, moon: bool) -> Tomorrow:
    """The same request, asked by the newer version."""
    return Tomorrow(moon=moon, **{field.name: getattr(request, field.name) for field in fields_of(TABLE)})


def _codes(decision: Any) -> dict[str, set[str]]:
    return {c.name: {reason.code for reason in c.reasons} - {"outranked"} for c in decision.candidates}


def test_no_old_manifest_serves_the_new_property():
    """With the new row off, everything is decided as before; with it on, everybody is out, and for that reason too."""
    old, new = Registry(autoload=False), Registry(autoload=False, table=WIDER)
    rng = random.Random(11)
    for _ in range(300):
        request, device = draw_request(rng), draw_device(rng)
        before = select(request, device=device, registry=old)
        off = select(tomorrow(request, moon=False), device=device, registry=new)
        on = select(tomorrow(request, moon=True), device=device, registry=new)
        assert (off.backend, off.source, _codes(off)) == (before.backend, before.source, _codes(before))
        assert on.backend is None
        fitting = {name for name, codes in _codes(before).items() if not codes}
        assert all(_codes(on)[name] == {"moon"} for name in fitting)
        assert all(codes for codes in _codes(on).values())


def test_the_new_property_is_matched_keyed_and_refused_by_the_table_alone():
    """A record made from the longer table has the field; its key and its verdicts differ by it."""
    record = make_record("WiderFields", fields_of(WIDER))
    keys = Keys(Registry(autoload=False, table=WIDER), WIDER)
    device = Device.pretend("h200")
    rng = random.Random(12)
    for _ in range(50):
        plain = draw_request(rng)
        values = {field.name: getattr(plain, field.name) for field in fields_of(TABLE)}
        off, on = record(**values), record(**values, moon=True)
        assert axis_values(off, device, WIDER)[:-1] == axis_values(plain, device)
        assert keys.key(off, device) != keys.key(on, device)
        assert all(misses and misses[-1] == (len(TABLE), 0) for _, misses in keys.verdicts(on, device))


def test_a_manifest_that_declares_it_serves_it():
    """The new axis is declared like any other, and only a table that has it takes it."""
    registry = Registry(builtin=False, autoload=False, table=WIDER)
    box = {row.axis: "any" for row in TABLE if row.neutral is not False and row.axis != "unknown_feature"}
    box |= {"causal": "any", "graph": "always", "alignment": 1, "block_mask": "any"}
    registry.register({"name": "old", "capability": [box]}, lambda call: None)
    registry.register({"name": "new", "capability": [{**box, "moon": [False, True]}]}, lambda call: None)
    request = Request(
        dtype="float16", seq_q=4, seq_k=4, num_q_heads=1, num_kv_heads=1, head_dim_qk=64, head_dim_v=64
    )  # fmt: skip
    decision = select(tomorrow(request, moon=True), device="h200", registry=registry)
    assert decision.backend == "new"
    assert _codes(decision)["old"] == {"moon"}


def test_fields_of_a_newer_version_are_refused_by_name():
    """A request as JSON with an unknown field is refused by every backend, with `unknown_feature`."""
    rng = random.Random(13)
    for _ in range(50):
        request = Request.from_json({**draw_request(rng).to_json(), "moon_phase": "full"})
        decision = select(request, device=draw_device(rng))
        assert decision.backend is None
        assert all(
            "unknown_feature" in codes or codes & {"quarantine", "numerics"} for codes in _codes(decision).values()
        )
