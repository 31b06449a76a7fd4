"""The probe calls a declaration too narrow only where a box could name what works: on the case at hand and beside it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from attn_backends.conformance.backend_in_use import registered
from attn_backends.conformance.engine import run_item
from attn_backends.conformance.item import Item, parse_item
from attn_backends.conformance.outcome import Outcome
from tests.conformance import planted
from tests.conformance.planted import eager

BOX = {**planted.BOX_DENSE_ONLY, "backward": [False]}
UNWINDOWED = {name: value for name, value in BOX.items() if name != "window"}
DECODE = {**UNWINDOWED, "seq_q": [1], "seq_k": "any"}
del DECODE["seq_len"]


def only_with_fewer_queries(call):
    """A top-left diagonal by cutting keys off, which needs as many of them as queries."""
    if call.causal_alignment == "top_left" and call.q.shape[1] > call.k.shape[1]:
        raise ValueError("no such diagonal")
    eager().run(call)


def only_masks_of_its_own_dtype(call):
    if call.attn_mask is not None and call.attn_mask.dtype != call.q.dtype:
        raise ValueError("a mask of q's dtype")
    eager().run(call)


def windows_for_one_query(call):
    if call.window_left >= 0 and call.q.shape[1] != 1:
        raise ValueError("no windows")
    eager().run(call)


def coarse_float16(call):
    """Loses the last digit of a float16 V: within the tolerance, and seen where a single key is chosen."""
    v = call.v if call.v.dtype != torch.float16 else call.v * (1 + torch.finfo(torch.float16).eps)
    eager().run(dataclasses.replace(call, v=v))


def outcome(run, boxes, item):
    check, case = parse_item(item)
    manifest = {"name": "planted_probed", "version": "0.1.0", "capability": boxes}
    with registered(manifest, run) as name:
        return run_item(name, Item(check, case))


TOP_LEFT = "probe-causal_alignment/fwd-fp16-b2h4x2-s17x33-d40-causal-topleft-randn-s0"
BOTTOM_RIGHT = {**BOX, "causal_alignment": ["bottom_right"]}
BIAS = "probe-bias/fwd-fp16-b2h4x2-s17x33-d40-bias4d-randn-s0"
UNBIASED = {**BOX, "bias": [False]}


@pytest.mark.parametrize(
    ("run", "box", "item", "words"),
    [
        (only_with_fewer_queries, BOTTOM_RIGHT, TOP_LEFT, "s129x65"),
        (only_masks_of_its_own_dtype, UNBIASED, BIAS, "bias4d-randn-s1"),
    ],
    ids=["some lengths", "some masks"],
)
def test_what_works_in_part_is_no_underclaim(run, box, item, words):
    """No axis names that part; the message says where it ends."""
    result = outcome(run, [box], item)
    assert result.outcome is Outcome.REFUSED
    assert "right here, but not for" in result.message
    assert words in result.message


@pytest.mark.parametrize(("box", "item"), [(BOTTOM_RIGHT, TOP_LEFT), (UNBIASED, BIAS)], ids=["lengths", "masks"])
def test_what_works_is_an_underclaim(box, item):
    """The reference does all of it."""
    result = outcome(planted.right, [box], item)
    assert result.outcome is Outcome.UNDERCLAIM, result.message


def test_one_box_may_claim_too_little_where_another_does_not():
    """Windows work for one query alone: the box of one query should have them, the box of any length need not."""
    item = "probe-window/fwd-fp16-b2h4x2-s1x77-d40-left5-randn-s0"
    assert outcome(windows_for_one_query, [UNWINDOWED], item).outcome is Outcome.REFUSED
    assert outcome(windows_for_one_query, [UNWINDOWED, DECODE], item).outcome is Outcome.UNDERCLAIM
    item = item.replace("s1x77", "s17x33")
    assert outcome(windows_for_one_query, [UNWINDOWED, DECODE], item).outcome is Outcome.REFUSED


def test_exact_rigs_count_as_well():
    """A dtype whose digits get lost is not served, however mild the case."""
    others = {**BOX, "dtype": ["bfloat16", "float32"]}
    item = "probe-dtype/fwd-fp16-b2h4x2-s17x33-d40-randn-s0"
    assert outcome(planted.right, [others], item).outcome is Outcome.UNDERCLAIM
    result = outcome(coarse_float16, [others], item)
    assert result.outcome is Outcome.REFUSED
    assert "should be the value of key" in result.message


def test_a_probe_does_not_ask_the_selector():
    """The kernel itself is run, and its own refusal is told."""
    result = outcome(only_with_fewer_queries, [BOTTOM_RIGHT], TOP_LEFT.replace("17x33", "33x17"))
    assert result.outcome is Outcome.REFUSED
    assert "no such diagonal" in result.message
