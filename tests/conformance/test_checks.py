"""Every check holds for the reference and can fail: planted bugs are found, by the check and the clause that they break."""

from __future__ import annotations

import pytest

import attn_backends
from attn_backends import Device
from attn_backends.conformance.checks import CHECKS
from attn_backends.conformance.checks.host_side import HOST_CHECKS
from attn_backends.conformance.engine import run_item
from attn_backends.conformance.item import Item, parse_item
from attn_backends.conformance.outcome import Outcome
from attn_backends.conformance.plan import plan
from attn_backends.registry.registry import default_registry
from tests.conformance import planted


@pytest.fixture(scope="module", autouse=True)
def _planted():
    planted.register()
    yield
    planted.unregister()


@pytest.fixture(scope="module")
def items():
    """Items of the planted backends' common declaration, grouped by check."""
    found = plan(default_registry().snapshot().get("planted_right"), "quick", Device.of("cpu"))
    return [item for item in found.items if item.case.head_dim <= 64]


def run(name, item_id):
    check, case = parse_item(item_id)
    return run_item(f"planted_{name}", Item(check, case))


@pytest.mark.parametrize("check", [name for name, check in CHECKS.items() if not check.gpu and check.level == "quick"])
def test_the_reference_passes_every_check(check, items):
    """The reference kernel under the planted manifest is right wherever a check looks."""
    mine = [item for item in items if item.check == check][:4]
    for item in mine:
        result = run_item("planted_right", item)
        assert result.outcome in (Outcome.PASS, Outcome.REFUSED), (result.id, result.message)


NASTY = "fwd-fp16-b2h4x2-s129x65-d40-causal-cap30-randn-s0"
WINDOW = "fwd-bf16-b2h4x2-s17x200-d40-causal-left16-randn-s0"
PLAIN = "fwd-fp32-b2h4x2-s17x33-d40-randn-s0"
RAGGED = "fwd-fp32-b4h4x2-s17x33-d40-ragged-causal-randn-s0"
MASKED = "fwd-fp32-b2h4x2-s17x33-d40-bool4d-randn-s0"
BACKWARD = "bwd-fp32-b2h4x2-s17x33-d40-det-randn-s0"

FOUND = [  # planted bug, the item that finds it, a clause that the report names
    ("lse_base_2", f"oracle/{PLAIN}", "LSE-1"),
    ("lse_base_2", f"visible/{PLAIN}", "LSE-1"),
    ("lse_base_2", f"split/{PLAIN}", "MERGE-3"),
    ("wide_window", f"oracle/{WINDOW}", "WINDOW-1"),
    ("wide_window", f"visible/{WINDOW}", "WINDOW-1"),
    ("no_softcap", f"oracle/{NASTY}", "SOFTCAP-1"),
    ("no_mask", f"oracle/{MASKED}", "MASK-1"),
    ("no_mask", f"visible/{MASKED}", "MASK-1"),
    ("no_mask", f"ones/{MASKED}", "MASK-3"),
    ("no_mask", f"huge/{MASKED}", "POISON-2"),
    ("no_mask", f"nan_safe/{MASKED.replace('-randn', '-nansafe-randn')}", "POISON-3"),
    ("no_mask", f"unseen/{MASKED}", "POISON-1"),
    ("lowest_hides", "lowest/fwd-fp32-b2h4x2-s17x33-d40-bias4d-randn-s0", "BIAS-2"),
    ("borrowing", f"evidence/{PLAIN}", "EVIDENCE-1"),
    ("no_scale", "oracle/fwd-fp32-b2h4x2-s17x33-d40-scale0.3-randn-s0", "SCALE-2"),
    ("modulo_heads", f"oracle/{PLAIN}", "GQA-1"),
    ("modulo_heads", f"onehot/{PLAIN}", "GQA-1"),
    ("top_left_always", "oracle/fwd-fp32-b2h4x2-s17x33-d40-causal-randn-s0", "CAUSAL-1"),
    ("top_left_always", "visible/fwd-fp32-b2h4x2-s17x33-d40-causal-randn-s0", "CAUSAL-1"),
    ("scribbling", f"unmodified/{PLAIN}", "PURITY-1"),
    ("one_buffer", f"apart/{PLAIN}", "PURITY-2"),
    ("past_the_end", f"oracle/{RAGGED}", "DENSELEN-1"),
    ("past_the_end", f"poison/{RAGGED}", "POISON-1"),
    ("unwritten", f"oracle/{RAGGED}", "PURITY-4"),
    ("noisy_backward", f"deterministic/{BACKWARD}", "DETERMINISM-2"),
    ("noisy_backward", f"gradients/{BACKWARD}", "BACKWARD-1"),
    ("backward_without_lse", f"lse_gradients/{BACKWARD}", "BACKWARD-3"),
    ("backward_without_lse", f"gradients/{BACKWARD}", "BACKWARD-3"),
    ("batch_dependent", "batch_invariant/fwd-fp32-b2h4x2-s3x300-d40-batchinv-randn-s0", "BATCHINV-1"),
]


@pytest.mark.parametrize(
    ("bug", "item", "clause"), FOUND, ids=[f"{bug}-{item.split('/')[0]}" for bug, item, _ in FOUND]
)
def test_a_planted_bug_is_found(bug, item, clause):
    """The bug fails the item, which names the clause; without the bug the same item passes."""
    result = run(bug, item)
    assert result.outcome is Outcome.FAIL, result.message
    assert clause in result.clauses
    assert result.message
    assert run("right", item).outcome is Outcome.PASS


def test_future_keys_that_get_through_are_found():
    """A kernel without the causal diagonal of the call is caught by changing what lies behind it."""
    check = CHECKS["future"]
    assert run("top_left_always", "future/fwd-fp32-b2h4x2-s65x33-d40-causal-randn-s0").outcome is Outcome.FAIL
    assert "CAUSAL-1" in check.clauses


def test_a_declared_request_that_raises_is_an_overclaim():
    """Declared and raises."""
    result = run("raising", f"oracle/{NASTY}")
    assert result.outcome is Outcome.OVERCLAIM
    assert "NotImplementedError" in result.message


def test_an_undeclared_request_that_works_is_an_underclaim():
    """Undeclared and right; the dropped feature of a kernel that has none is a refusal."""
    item = "probe-softcap/fwd-fp32-b2h4x2-s17x33-d40-cap2-randn-s0"
    assert run("modest", item).outcome is Outcome.UNDERCLAIM
    assert run("no_softcap", item).outcome is Outcome.REFUSED


def test_undeclared_requests_are_refused_under_their_axis():
    """The selector and the call refuse, and the code is the axis."""
    result = run("modest", "refused-softcap/fwd-fp32-b2h4x2-s17x33-d40-cap2-randn-s0")
    assert (result.outcome, result.message) == (Outcome.REFUSED, "softcap")


def _deaf_select(monkeypatch, accepted):
    """A selector that does not look at one axis."""
    real = attn_backends.select

    def select(request, **given):
        return real(request.replace(**accepted), **given)

    monkeypatch.setattr(attn_backends, "select", select)


def test_a_selector_that_drops_an_axis_is_silent_and_wrong(monkeypatch):
    """Undeclared, accepted and wrong is its own outcome, the worst."""
    from attn_backends.conformance.checks import calling
    from attn_backends.host import dispatch

    real = dispatch.select
    monkeypatch.setattr(dispatch, "select", lambda request, **given: real(request.replace(softcap=None), **given))
    _deaf_select(monkeypatch, {"softcap": None})
    manifest = {"name": "planted_deaf", "version": "0.2.0", "capability": [planted.NARROW]}
    attn_backends.register(manifest, planted.no_softcap, backward=planted.noisy_backward)
    result = run("deaf", "refused-softcap/fwd-fp32-b2h4x2-s17x33-d40-cap2-randn-s1")
    attn_backends.unregister("planted_deaf")
    assert result.outcome is Outcome.SILENT_WRONG, result.message
    assert calling.launches_of("planted_deaf")


def test_a_refusal_under_another_code_fails(monkeypatch):
    """The reasons must be the axes that are missed, no others."""
    _deaf_select(monkeypatch, {"window_left": 5})
    result = run("modest", "refused-softcap/fwd-fp32-b2h4x2-s17x33-d40-cap2-randn-s0")
    assert result.outcome is Outcome.FAIL
    assert "window" in result.message


def test_a_call_that_another_backend_served_fails(monkeypatch):
    """The ledger must show the backend under test, whatever the numbers."""
    from attn_backends.conformance.checks import calling

    monkeypatch.setattr(calling, "launches_of", lambda backend: 0)
    result = run("right", f"oracle/{PLAIN}")
    assert result.outcome is Outcome.FAIL
    assert "ledger" in result.message


def test_compiled_code_is_compared():
    """The check of the level full holds for the reference."""
    name = "compiled/fwd-fp32-b2h4x2-s17x33-d40-causal-randn-s0"
    check, case = parse_item(name)
    result = run_item("eager", Item(check, case))
    assert result.outcome is Outcome.PASS, result.message


@pytest.mark.parametrize("name", HOST_CHECKS)
def test_the_hosts_helpers_hold(name):
    """merge_states and append_kv keep their clauses."""
    finding = HOST_CHECKS[name].run()
    assert finding.ok, finding.message


WRONG_HELPERS = {
    "merge_union": lambda out_a, lse_a, out_b, lse_b: ((out_a + out_b) / 2, (lse_a + lse_b) / 2),
    "merge_empty": lambda out_a, lse_a, out_b, lse_b: (out_a * 1.0, lse_a),
    "append_slots": lambda k, v, k_cache, v_cache, slots, **_given: k_cache.zero_(),
    "append_codes": lambda k, v, k_cache, v_cache, slots, **_given: k_cache.view(dtype=k_cache.dtype),
    "append_scales": lambda k, v, k_cache, v_cache, slots, **_given: None,
}


@pytest.mark.parametrize("name", HOST_CHECKS)
def test_the_checks_of_helpers_can_fail(name):
    """A wrong helper in its place is found."""
    assert not HOST_CHECKS[name].run(WRONG_HELPERS[name]).ok
