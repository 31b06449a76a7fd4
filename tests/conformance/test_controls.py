"""The controls: correct implementations of many kinds agree with the oracle, and declare what they do."""

from __future__ import annotations

import pytest
import torch

from attn_backends.capability import TABLE
from attn_backends.conformance.backend_in_use import registered
from attn_backends.conformance.case_request import request_of
from attn_backends.conformance.controls.catalogue import all_controls
from attn_backends.conformance.controls.keeping import kept
from attn_backends.conformance.dropped import kept_weights
from attn_backends.conformance.engine import run_item
from attn_backends.conformance.item import Item, parse_item
from attn_backends.conformance.outcome import Outcome
from attn_backends.conformance.standing import standing
from attn_backends.conformance.trial import unmutated
from attn_backends.device import Device
from attn_backends.registry.registry import default_registry

CPU = Device(kind="cpu", name="cpu")
EVERY = (*all_controls(), unmutated())
TABLE_OF_CASES = [
    "oracle/fwd-fp32-b2h4x2-s17x33-d40-randn-s0",
    "oracle/fwd-fp16-b2h4x2-s33x17-d40-causal-cap30-randn-s0",
    "oracle/fwd-bf16-b2h4x2-s17x50-d40x24-causal-left16-randn-s0",
    "oracle/fwd-fp64-b2h3x1-s9x33-d33-bhsd-left5-right3-scale0-randn-s0",
    "oracle/fwd-fp32-b4h4x2-s17x33-d40-thd-ragged-causal-sinks-randn-s0",
    "oracle/fwd-fp32-b4h4x2-s17x33-d40-ragged-causal-alibi-bias4d-randn-s0",
    "lowest/fwd-fp32-b2h4x2-s17x33-d40-bias4d-randn-s0",
    "oracle/fwd-fp32-b2h4x2-s17x33-d40-bool4d-blocks5-drop0.3-randn-s0",
    "oracle/fwd-fp32-b2h4x2-s17x33-d40-last_dim_step2-randn-s0",
    "oracle/fwd-fp32-b2h4x2-s0x9-d40-randn-s0",
    "oracle/fwd-fp32-b2h4x2-s9x0-d40-sinks-randn-s0",
    "oracle/fwd-fp16-b3h7x1-s1x50-d64-page16-hnd-decode-ke4m3-ve4m3-gtoken-causal-randn-s0",
    "oracle/fwd-fp32-b5h4x2-s17x33-d40-thd-ragged-page16-causal-randn-s0",
    "oracle/fwd-bf16-b2h4x2-s17x33-d40-ke5m2-vint8-ghead-randn-s0",
    "oracle/fwd-e4m3-b2h4x2-s17x33-d40-qe4m3-ke4m3-ve4m3-gblock-randn-s0",
    "gradients/bwd-fp32-b2h4x2-s17x33-d40-causal-cap2-randn-s0",
    "gradients/bwd-fp16-b2h6x2-s17x33-d40-bias2d-gradbias-randn-s0",
    "gradients/bwd-fp32-b4h4x2-s17x33-d40-thd-ragged-causal-sinks-drop0.3-gradsinks-randn-s0",
    "oracle/fwd-fp32-b2h4x2-s33x17-d40-causal-scale0.3-nolse-randn-s0",
    "oracle/fwd-bf16-b4h3x1-s17x33-d40x24-thd-ragged-left5-right3-alibi-nolse-randn-s0",
    "gradients/bwd-fp32-b4h4x2-s17x33-d40-ragged-causal-bias4d-nolse-gradbias-randn-s0",
    "poison/fwd-fp32-b4h4x2-s17x33-d40-ragged-randn-s0",
    "unmodified/fwd-fp32-b2h4x2-s17x33-d40-causal-randn-s0",
    "apart/fwd-fp32-b2h4x2-s17x33-d40-causal-randn-s0",
]  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("control", EVERY, ids=lambda control: control.name)
def test_a_control_agrees_with_the_oracle(control):
    """On every case of a small broad table that it declares; and it declares some."""
    tried, wrong = 0, []
    with registered(control.manifest, control.run, control.backward) as name:
        manifest = default_registry().snapshot().get(name)
        for text in TABLE_OF_CASES:
            check, case = parse_item(text)
            if standing(manifest.boxes, request_of(case), CPU).fits:
                tried += 1
                result = run_item(name, Item(check, case))
                if result.outcome is not Outcome.PASS:
                    wrong.append(f"{text}: {result.outcome} {result.message}")
    assert wrong == []
    assert tried >= 3


def test_there_are_eight_and_they_differ():
    """At least eight, no two of the same title."""
    titles = {control.title for control in all_controls()}
    assert len(titles) == len(all_controls()) >= 8


def test_together_the_controls_declare_every_axis():
    """What no control declares, no control guards; graph levels and other hardware are not for a CPU."""
    declared = set()
    for control in EVERY:
        for box in control.manifest["capability"]:
            declared |= {axis for axis, value in box.items() if value not in ([False], ["none"])}
    assert {row.axis for row in TABLE} - declared <= {"graph", "alignment", "unknown_feature"}


@pytest.mark.parametrize("seed", [0, 7, 2**33 + 12345, -1])
def test_controls_drop_what_the_oracle_drops(seed):
    """Two Philox written apart."""
    whole = kept_weights(3, 4, 5, 6, 0.3, seed)
    parts = torch.stack([kept(0.3, seed, sequence, 4, 5, 6) for sequence in range(3)])
    assert torch.equal(whole, parts)
