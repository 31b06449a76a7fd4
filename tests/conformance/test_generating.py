"""Cases of narrow boxes: an option that needs another one beside it is tried with it, and not left out."""

from __future__ import annotations

from attn_backends.capability import TABLE
from attn_backends.conformance.generating import Scope, cases_of
from attn_backends.device import Device
from attn_backends.registry.manifest import read_manifest
from tests.conformance.planted import BOX


def cases(**changes):
    box = {name: value for name, value in {**BOX, **changes}.items() if value is not None}
    raw = {"name": "on_paper", "version": "1", "kernel": "nowhere:run", "capability": [box]}
    manifest = read_manifest(raw, label="on_paper", origin="in_process")
    return cases_of(Scope(box=manifest.boxes[0], device=Device.of("cpu"), level="quick", table=TABLE)).cases


def windows(found):
    return {(case.left, case.right) for case in found if case.left >= 0 or case.right >= 0}


def test_a_box_of_one_alignment_gets_every_window():
    """Windows and causal hang where the box has its diagonal."""
    both, other = cases(), cases(causal_alignment=["top_left"])
    assert windows(other) == windows(both)
    assert all(case.top_left for case in other if case.seq_q != case.seq_k and (case.left >= 0 or case.causal))
    assert sum(case.causal for case in other) >= 10


def test_a_box_without_alignment_gets_square_cases():
    """With as many queries as keys there is one diagonal, whatever the alignment."""
    found = cases(causal_alignment=None)
    hanging = [case for case in found if case.causal or case.left >= 0 or case.right >= 0]
    assert windows(hanging)
    assert {case.causal for case in hanging} == {False, True}
    assert all(case.seq_q == case.seq_k for case in hanging)
