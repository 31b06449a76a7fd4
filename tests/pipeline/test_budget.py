"""The budget of a pipeline: what it counts, and what it says does not fit."""

from __future__ import annotations

import dataclasses

import pytest

from attn_backends.pipeline.budget import Budget
from attn_backends.pipeline.chip import BLACKWELL, HOPPER
from attn_backends.pipeline.plan import Plan
from attn_backends.pipeline.search import fitting, plans

DUAL = Plan(head_dim=128)


def budget(chip=HOPPER, **changes):
    return Budget(plan=dataclasses.replace(DUAL, **changes), chip=chip)


def test_tiles_in_bytes() -> None:
    """Two query tiles of 64 x 128, two steps of 128 keys, two bytes each."""
    assert budget().tiles == {"Q": 32_768, "K": 65_536, "V": 65_536, "O": 32_768}
    assert budget(shared_out=True).tiles["O"] == 0
    assert budget(bytes=1).tiles["K"] == 32_768


def test_a_barrier_says_full_and_another_empty_for_every_buffer() -> None:
    assert budget().barriers == 2 * (2 + 2 + 2)
    assert budget(q_tiles=3, stages=3).barriers == 2 * (3 + 3 + 3)


@pytest.mark.parametrize(
    ("chip", "changes", "short"),
    [
        (HOPPER, {}, []),
        (HOPPER, {"stages": 3}, ["shared memory"]),
        (HOPPER, {"head_dim": 256, "keys": 128, "stages": 1, "shared_out": True}, ["registers"]),
        (HOPPER, {"head_dim": 64, "q_tiles": 3, "q_registers": True}, ["registers"]),
        (BLACKWELL, {"rows": 128, "shared_out": True}, ["tensor memory"]),
        (BLACKWELL, {"rows": 128, "shared_out": True, "s_stages": 1}, []),
    ],
    ids=["dual Q, dual S", "a third step", "wide tiles", "queries in registers", "both on Blackwell", "dual Q there"],
)
def test_what_is_short_is_named(chip, changes, short) -> None:
    found = budget(chip, **changes)
    assert [line.resource for line in found.lines if not line.fits] == short
    assert found.fits == (not short)


def test_blocks_per_multiprocessor() -> None:
    """None where one does not fit; two where the registers and the memory are there twice."""
    assert budget(stages=3).resident == 0
    assert budget().resident == 1
    assert budget(head_dim=64, q_tiles=1, stages=1, keys=64).resident > 1


def test_a_tuner_gets_what_fits_and_nothing_else() -> None:
    found = fitting(128, HOPPER)
    assert DUAL in found
    assert all(Budget(plan=plan, chip=HOPPER).fits for plan in found)
    assert 0 < len(found) < len(list(plans(128)))
