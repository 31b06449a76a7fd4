"""The cache key tells apart whatever is decided apart, and nothing that differs hides behind one key."""

from __future__ import annotations

import random
from typing import Any

import pytest

from attn_backends import Request, select
from attn_backends.capability import TABLE
from attn_backends.device import Device
from attn_backends.fields import MISSING
from attn_backends.request_fields import FIELDS
from tests.properties.drawing import draw_device, draw_request
from tests.properties.keys import Keys, odd_registry

REGISTRY = odd_registry()
KEYS = Keys(REGISTRY)
SEQ_LEN = next(index for index, row in enumerate(TABLE) if row.axis == "seq_len")
NUMBERS = (0, 1, 2, 3, 7, 8, 16, 17, 64, 65, 100, 128, 129, 1000, 4097, 16384, 16385, 10**6)
STRIDES = (None, (10**10, 10**6, 1000, 1), (64, 16, 8, 2), (4096, 256, 64, 1), (10**9, 100, 1), (64, 8, 2))


def _alternatives(name: str) -> tuple[Any, ...]:
    """Legal and illegal values of a field; the illegal ones are left out when they are tried."""
    field = next(field for field in FIELDS if field.name == name)
    if field.check.choices:
        return (*field.check.choices, None)
    if name.endswith("_strides"):
        return STRIDES
    if name == "unknown":
        return ((), ("moon",), ("moon", "tide"))
    return (False, True, None, 0.0, 0.25, 0.5, -1, (64, 128), *NUMBERS)


def _changed(request: Request, name: str) -> list[Request]:
    changed = []
    for value in _alternatives(name):
        if value == getattr(request, name) and type(value) is type(getattr(request, name)):
            continue
        try:
            changed.append(request.replace(**{name: value}))
        except ValueError:
            continue
    return [other for other in changed if other != request]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_changed_field_changes_the_key_or_is_irrelevant(field):
    """Another value in one field gives another key; where it does not, it is a length or a stride that decides alike."""
    rng = random.Random(field.name)
    tried = 0
    for _ in range(40):
        request, device = draw_request(rng), Device.pretend(draw_device(rng))
        for other in _changed(request, field.name):
            tried += 1
            if KEYS.key(request, device) != KEYS.key(other, device):
                continue
            assert field.bucketed or not field.keyed, (field.name, request, getattr(other, field.name))
            assert KEYS.verdicts(request, device) == KEYS.verdicts(other, device)
    assert tried >= 20


def _nudged(rng: random.Random, request: Request) -> Request:
    """Other lengths near by, other strides of some class: often the same bucket."""
    changes: dict[str, Any] = {}
    for name in ("batch", "seq_q", "seq_k", "total_q", "total_k", "num_pages"):
        size = getattr(request, name)
        if size is not None and rng.random() < 0.5:
            changes[name] = max(1, size + rng.choice((-15, -3, -1, 0, 1, 5, size // 3)))
    if request.seq_q == request.seq_k and rng.random() < 0.7:
        changes["seq_q"] = changes["seq_k"] = changes.get("seq_k", request.seq_k)
    return request.replace(**changes)


def test_equal_keys_are_decided_alike():
    """Two requests with one key have the same value on every axis but seq_len, and the same verdict of every backend."""
    rng = random.Random(5)
    equal = 0
    for _ in range(6000):
        device = Device.pretend(draw_device(rng))
        one = draw_request(rng)
        other = _nudged(rng, one)
        if one == other or KEYS.key(one, device) != KEYS.key(other, device):
            continue
        equal += 1
        values, others = KEYS.values(one, device), KEYS.values(other, device)
        apart = [
            TABLE[index].axis for index in range(len(TABLE)) if values[index] != others[index] and index != SEQ_LEN
        ]
        assert not apart, (apart, one, other)
        assert KEYS.verdicts(one, device) == KEYS.verdicts(other, device), (one, other)
    assert equal >= 300


def test_equal_keys_share_a_decision_and_an_id():
    """The second of two requests with one key costs nothing and gets the first one's decision."""
    rng = random.Random(6)
    shared = 0
    for _ in range(600):
        name = draw_device(rng)
        one = draw_request(rng)
        other = _nudged(rng, one)
        device = Device.pretend(name)
        same = KEYS.key(one, device) == KEYS.key(other, device)
        a, b = (select(request, device=device, registry=REGISTRY) for request in (one, other))
        if same and _quarantined(a) == _quarantined(b):
            assert _answer(a) == _answer(b)
            assert a.id == b.id
            shared += one != other
        elif a.id == b.id:
            raise AssertionError(f"one id for two answers: {one} and {other}")
    assert shared >= 40


def _quarantined(decision: Any) -> set[str]:
    """Quarantine looks at exact lengths, so it is asked beside the key."""
    return {c.name for c in decision.candidates if c.stage == "quarantine"}


def _answer(decision: Any) -> tuple[Any, ...]:
    codes = {c.name: sorted(reason.code for reason in c.reasons) for c in decision.candidates}
    return decision.backend, decision.source, codes


def test_a_bucket_never_straddles_a_declared_limit():
    """Around every length that any manifest declares, the two sides have different keys."""
    manifests = REGISTRY.snapshot().manifests
    base = Request(
        dtype="float32", seq_q=4, seq_k=4, num_q_heads=1, num_kv_heads=1, head_dim_qk=64, head_dim_v=64, phase="append"
    )
    device = Device.pretend("cpu")
    cuts = {
        (name, cut)
        for manifest in manifests
        for box in manifest.boxes
        for name, allowed in zip(("seq_q", "seq_k"), box.entries[SEQ_LEN], strict=True)
        if allowed is not None
        for cut in allowed.cuts
        if cut > 1
    }
    assert {("seq_k", 16385), ("seq_k", 1001), ("seq_q", 66)} <= cuts
    for name, cut in cuts:
        below, above = base.replace(**{name: cut - 1}), base.replace(**{name: cut})
        assert KEYS.key(below, device) != KEYS.key(above, device), (name, cut)


def test_required_fields_have_no_default():
    """The table's required fields are those that no request can leave out."""
    required = {field.name for field in FIELDS if field.default is MISSING}
    assert required == {"dtype", "seq_q", "seq_k", "num_q_heads", "num_kv_heads", "head_dim_qk", "head_dim_v"}
