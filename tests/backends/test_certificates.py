"""The backends that run on a CPU earn a certificate there: nothing wrong, nothing undeclared that works, no gaps."""

from __future__ import annotations

import pytest

from attn_backends.conformance.certificate import obstacles
from attn_backends.conformance.engine import run_item
from attn_backends.conformance.outcome import Outcome
from attn_backends.conformance.plan import plan
from attn_backends.conformance.suite import run_suite
from attn_backends.device import Device
from attn_backends.registry.registry import default_registry

ON_A_CPU = ("eager", "sdpa_math", "sdpa_cpu_flash", "numba_cpu")
LONG = ("eager", "sdpa_cpu_flash")  # at full, and held against other oracles by tests of their own


def manifest(name):
    return default_registry().snapshot().get(name)


def test_these_are_the_backends_with_a_box_for_a_cpu():
    """Every built-in manifest that declares a CPU is in the list, and no other."""
    from attn_backends.conformance.standing import here

    found = {
        name
        for name in default_registry().snapshot().names()
        if manifest(name).origin == "builtin" and here(manifest(name).boxes, Device.of("cpu"))
    }
    assert set(ON_A_CPU) == found


@pytest.mark.parametrize("name", ON_A_CPU)
def test_nothing_that_works_is_undeclared(name):
    """Every probe of `full` ends where the declaration does."""
    probes = [item for item in plan(manifest(name), "full", Device.of("cpu")).items if item.check.startswith("probe-")]
    found = {item.id: run_item(name, item) for item in probes}
    assert probes
    assert {key: one.message for key, one in found.items() if one.outcome is not Outcome.REFUSED} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_quick_conforms(name):
    """Those whose full run is long."""
    record = run_suite(name, "quick", device="cpu")
    assert record.conforms, record.headline


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] if name in LONG else []) for name in ON_A_CPU]
)
def test_full_earns_a_certificate(name):
    """Nothing is in the way but the suite's own strength, which other tests measure."""
    record = run_suite(name, "full", device="cpu")
    assert obstacles(record, manifest(name), unmeasured=True) == []
