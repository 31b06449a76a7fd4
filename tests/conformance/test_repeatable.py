"""Checks that compare bits: a backend that never repeats itself is judged by the tolerance, and a leak is still found."""

from __future__ import annotations

import contextlib

import pytest
import torch

from attn_backends.conformance.backend_in_use import registered
from attn_backends.conformance.case import parse
from attn_backends.conformance.checks.check import Finding
from attn_backends.conformance.checks.repeatable import AGAIN, unchanged
from attn_backends.conformance.engine import run_item
from attn_backends.conformance.item import Item, parse_item
from attn_backends.conformance.outcome import Outcome
from tests.conformance import planted
from tests.conformance.planted import eager

BOXES = [planted.BOX_DENSE_ONLY, {**planted.BOX, "backward": [False]}, planted.PAGED]
NAN = float("nan")


def jitter(tensor, share=0.5):
    """One unit in the last place away from 0, at a random share of the places; now and then nowhere."""
    if tensor is not None and torch.rand(()) < 0.7:
        away = tensor.float() * (1 + torch.finfo(tensor.dtype).eps)
        chosen = (torch.rand(tensor.shape) < share) & tensor.isfinite() & (tensor != 0)
        tensor.copy_(torch.where(chosen, away.to(tensor.dtype), tensor))


def restless(call):
    """Right, but for the order in which it adds."""
    eager().run(call)
    jitter(call.out)
    jitter(call.lse)


def restless_backward(call, d_out, d_lse):
    grads = eager().backward(call, d_out, d_lse)
    for gradient in (grads.q, grads.k, grads.v):
        jitter(gradient)
    return grads


def behind(call):
    """The last key of K, where a ragged batch has nothing, as a number: 1 where NaN lies there, else 0."""
    ragged = call.seq_lens is not None and call.block_table is None
    return call.k[0, -1, 0, 0].isnan().to(call.out.dtype) if ragged else torch.zeros((), dtype=call.out.dtype)


def leaking_nan(call, d_out, d_lse):
    grads = restless_backward(call, d_out, d_lse)
    grads.k += torch.where(behind(call) > 0, NAN, 0.0).to(grads.k)
    return grads


def leaking_a_number(call, d_out, d_lse):
    """Sanitises what it should not have read, and counts it."""
    grads = restless_backward(call, d_out, d_lse)
    grads.v += 0.1 * behind(call).to(grads.v)
    return grads


def leaking_one_bit(call, d_out, d_lse):
    """Repeats itself, and differs in one bit where there is poison."""
    grads = eager().backward(call, d_out, d_lse)
    if behind(call) > 0:
        grads.k.flatten()[3] *= 1 + torch.finfo(grads.k.dtype).eps
    return grads


def forward_leak_under_restless_gradients(call):
    eager().run(call)
    call.out.flatten()[5] *= 1 + behind(call) * torch.finfo(call.out.dtype).eps


def right_backward(call, d_out, d_lse):
    return eager().backward(call, d_out, d_lse)


@contextlib.contextmanager
def backend(run, backward=right_backward):
    with registered({"name": "planted_restless", "version": "0.1.0", "capability": BOXES}, run, backward) as name:
        yield name


def outcome(run, backward, item):
    check, case = parse_item(item)
    torch.manual_seed(0)
    with backend(run, backward) as name:
        return run_item(name, Item(check, case))


BACKWARD = "poison/bwd-fp32-b4h4x2-s17x33-d40-ragged-causal-randn-s0"
HALF = "poison/bwd-bf16-b4h4x2-s17x33-d40-ragged-causal-randn-s0"
STRICT = "poison/bwd-fp32-b4h4x2-s17x33-d40-ragged-causal-det-randn-s0"
FORWARD = [
    "poison/fwd-fp32-b4h4x2-s17x33-d40-ragged-randn-s0",
    "unseen/fwd-bf16-b2h4x2-s17x33-d40-bool4d-randn-s0",
    "huge/fwd-fp32-b2h4x2-s17x33-d40-causal-randn-s0",
    "future/fwd-fp32-b2h4x2-s17x33-d40-causal-randn-s0",
    "nan_safe/fwd-fp32-b2h4x2-s17x33-d40-causal-nansafe-randn-s0",
    "upper_bounds/fwd-fp32-b4h4x2-s17x33-d40-thd-ragged-randn-s0",
    "page_order/fwd-fp32-b4h4x2-s17x33-d40-ragged-page16-randn-s0",
]


@pytest.mark.parametrize("item", [BACKWARD, HALF])
def test_an_honest_backward_without_an_order_passes(item):
    """Single bits differ from run to run, with poison and without."""
    result = outcome(planted.right, restless_backward, item)
    assert result.outcome is Outcome.PASS, result.message


@pytest.mark.parametrize("item", FORWARD, ids=[item.partition("/")[0] for item in FORWARD])
def test_an_honest_forward_without_an_order_passes(item):
    """Every check that compares bits asks first."""
    result = outcome(restless, restless_backward, item)
    assert result.outcome is Outcome.PASS, result.message


@pytest.mark.parametrize("backward", [leaking_nan, leaking_a_number])
@pytest.mark.parametrize("item", [BACKWARD, HALF])
def test_a_leak_is_found_in_a_backward_without_an_order(backward, item):
    """NaN and gross deviations are no noise."""
    result = outcome(planted.right, backward, item)
    assert result.outcome is Outcome.FAIL
    assert "POISON-1" in result.clauses


@pytest.mark.parametrize(
    ("run", "item"),
    [
        (lambda call: (planted.no_mask(call), jitter(call.out)), FORWARD[1]),
        (lambda call: (planted.top_left_always(call), jitter(call.out)), FORWARD[2].replace("17x33", "65x33")),
        (lambda call: (planted.top_left_always(call), jitter(call.out)), FORWARD[3].replace("17x33", "65x33")),
        (lambda call: (planted.past_the_end(call), jitter(call.out)), FORWARD[0]),
    ],
    ids=["unseen", "huge", "future", "poison"],
)
def test_a_leak_is_found_in_a_forward_without_an_order(run, item):
    """What a row does not see reaches it, beside noise."""
    assert outcome(run, restless_backward, item).outcome is Outcome.FAIL


def test_what_repeats_itself_is_compared_to_the_last_bit():
    """One bit of a gradient is a leak where two equal calls agree; in an output too, whatever its gradients do."""
    result = outcome(planted.right, leaking_one_bit, BACKWARD)
    assert result.outcome is Outcome.FAIL
    assert "d_k depends on" in result.message
    result = outcome(forward_leak_under_restless_gradients, restless_backward, BACKWARD)
    assert result.outcome is Outcome.FAIL
    assert "out depends on" in result.message


def test_under_deterministic_every_bit_counts():
    """What was promised is not excused."""
    assert outcome(planted.right, restless_backward, STRICT).outcome is Outcome.FAIL
    assert outcome(planted.right, right_backward, STRICT).outcome is Outcome.PASS


def test_a_call_is_repeated_only_where_bits_differ():
    """Equal answers cost nothing more; unequal ones are repeated until each has shown that it moves."""
    case, calls = parse("fwd-fp32-b1h1x1-s1x1-d1-randn-s0"), []
    answers = iter([torch.zeros(3), torch.zeros(3), torch.ones(3)])

    def again():
        calls.append(1)
        return {"out": next(answers)}

    def verdict(got):
        found = unchanged(
            case, {"out": torch.zeros(3)}, {"out": got}, "x", again=again, within=lambda: Finding(ok=True)
        )
        return found.ok, len(calls)

    assert verdict(torch.zeros(3)) == (True, 0)
    assert verdict(torch.full((3,), 2.0)) == (True, 3)
    answers = iter([torch.zeros(3)] * AGAIN)
    assert verdict(torch.full((3,), 2.0)) == (False, 3 + AGAIN)
