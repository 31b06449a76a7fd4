"""Calibrated times beside the picks that they made: written, read, and judged by again."""

from __future__ import annotations

import json

import pytest

from attn_backends.calibrate.kept import kept, kept_times
from attn_backends.registry.environment import Environment
from attn_backends.selector.measured.machine import Machine, device_key
from attn_backends.selector.measured.store import StoredTimes
from attn_backends.selector.times import NO_TIMES, FixedTimes
from tests.selector.measured_rows import HERE, row
from tests.selector.scenes import registry, request

SHORT, LONG = request(seq_q=256, seq_k=256), request(seq_q=1024, seq_k=1024)
BETWEEN = request(seq_q=512, seq_k=512)
MACHINE = Machine(driver="580", torch="2.11.0", triton="3.6.0")
ENVIRONMENT = Environment.pretend(torch="2.11.0", triton="3.6.0")


def store(*rows):
    """The rows as ranking has them, of this device."""
    return StoredTimes.of({device_key(HERE): list(rows)}, MACHINE)


@pytest.mark.parametrize("asked", [SHORT, BETWEEN, LONG], ids=["bucket", "neighbours", "failed there"])
def test_what_was_kept_answers_alike(asked):
    """Through JSON: the times of a bucket, between buckets, and who has none."""
    made = registry()
    before = store(
        row(made, "a", 1.0, SHORT), row(made, "b", 2.0, SHORT), row(made, "a", 3.0, LONG),
        row(made, "b", None, LONG),
    )  # fmt: skip
    after = kept_times(json.loads(json.dumps(kept(before, HERE, made))))
    manifests = made.snapshot().manifests
    told = before.measured(manifests, asked, HERE, ENVIRONMENT)
    assert told
    assert after.measured(manifests, asked, HERE, ENVIRONMENT) == told


def test_rows_of_other_sources_are_left_out():
    """They would count for nothing."""
    made = registry()
    before = store(row(made, "a", 1.0, SHORT), row(made, "b", 2.0, SHORT, sources="of yesterday"))
    found = kept(before, HERE, made)
    assert [place["ms"] for place in found["places"]] == [{"a": 1.0}]
    assert list(found["backends"]) == ["a"]


@pytest.mark.parametrize("times", [NO_TIMES, FixedTimes.of({"a": 1.0})], ids=["none", "fixed"])
def test_a_store_without_rows_keeps_nothing(times):
    """Nothing to write down."""
    assert kept(times, HERE, registry()) is None
