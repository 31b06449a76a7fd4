"""Twenty thousand random questions to `select`: it answers each, or raises an error of this package."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_backends import AttnBackendsError, Request, list_backends, select
from attn_backends.box import axis_values
from attn_backends.capability import TABLE
from attn_backends.device import Device
from attn_backends.errors import RequestError
from attn_backends.fields import MISSING
from attn_backends.request_fields import FIELDS
from tests.properties.drawing import draw_device, draw_policy, draw_request

QUESTIONS = 20_000
BATCH = 250
NAMES = tuple(manifest.name for manifest in list_backends() if manifest.origin == "builtin")
EXACT = tuple(manifest.name for manifest in list_backends() if manifest.name in NAMES and manifest.numerics == "exact")
CODES = {row.axis for row in TABLE} | {
    "blocked", "not_in_only", "api_version", "requirement", "load_error", "not_certified", "numerics", "quarantine",
    "gap", "smem", "check", "unknown_feature", "outranked",
}  # fmt: skip


def test_every_backend_is_eligible_in_one_of_twenty(record_property):
    """Of the 20,000 random requests, each exact built-in backend may serve at least 5 %; whoever is out says why."""
    rng = random.Random(2)
    eligible: Counter[str] = Counter()
    for _ in range(QUESTIONS):
        decision = select(draw_request(rng), device=draw_device(rng))
        for candidate in decision.candidates:
            codes = {reason.code for reason in candidate.reasons}
            assert codes <= CODES
            assert (candidate.status == "rejected") == bool(codes - {"outranked"})
            eligible[candidate.name] += candidate.status != "rejected"
    shares = {name: eligible[name] / QUESTIONS for name in EXACT}  # nobody gets the others unasked
    record_property("eligible", ", ".join(f"{name} {share:.1%}" for name, share in sorted(shares.items())))
    assert min(shares.values()) >= 0.05, shares


@settings(max_examples=24, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 2**32))
def test_every_question_has_a_typed_answer(seed):
    """Whatever the request, policy, device and forced backend: a Decision, or an error of this package."""
    rng = random.Random(seed)
    for _ in range(BATCH):
        request, policy = draw_request(rng), draw_policy(rng, NAMES)
        backend = rng.choice(NAMES) if rng.random() < 0.2 else None
        try:
            decision = select(request, backend=backend, policy=policy, device=draw_device(rng))
        except AttnBackendsError as error:
            decision = error.decision
        assert decision is not None
        assert {candidate.name for candidate in decision.candidates} >= set(NAMES)
        if rng.random() < 0.05:
            assert decision.explain()


def _legal(field, value) -> bool:
    try:
        field.verify(value)
    except RequestError:
        return False
    return True


def _refusal(values) -> RequestError | None:
    try:
        Request(**values)
    except RequestError as error:
        return error
    return None


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=3), st.lists(st.integers(0, 2), max_size=4),
    st.tuples(st.integers(-1, 2), st.integers(-1, 2), st.integers(-1, 2), st.integers(-1, 2)),
)  # fmt: skip


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(FIELDS), JUNK)
def test_a_field_takes_a_legal_value_or_says_what_is_legal(field, junk):
    """A Request with any value in any field is made, or refused by a RequestError that names the field."""
    plain = {
        "dtype": "float32", "seq_q": 2, "seq_k": 2, "num_q_heads": 6, "num_kv_heads": 6, "head_dim_qk": 8,
        "head_dim_v": 8,
    }  # fmt: skip
    values = {**plain, field.name: junk}
    refused = _refusal(values)
    if refused is not None:
        heads = field.name in ("num_q_heads", "num_kv_heads")
        assert refused.field == field.name or (heads and refused.field == "num_q_heads")
        assert refused.allowed
        return
    request = Request(**values)
    assert _legal(field, junk)
    assert getattr(request, field.name) == junk or (field.name == "kv_layout" and junk is None)
    axis_values(request, Device.pretend("h200"))


@pytest.mark.parametrize("field", [f for f in FIELDS if f.default is MISSING], ids=lambda f: f.name)
def test_a_missing_field_is_named(field):
    """A field without default that is not given is named in the error."""
    plain = {f.name: "float32" if f.name == "dtype" else 8 for f in FIELDS if f.default is MISSING and f != field}
    with pytest.raises(RequestError, match=field.name):
        Request(**plain)
