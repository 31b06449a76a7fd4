"""paged_decode cuts a batch so that programs fill whole waves of a device: plans, not times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("triton", reason="plans are worked out by Triton's interpreter")

from attn_backends.backends.paged_decode.launch import merging, most_waves
from tests.backends.paged_decode_plans import DECODES

EQUAL = {  # sequences of one length -> keys of a tile, programs per multiprocessor, splits, items
    "1 of 32k": (64, 2, 32, 256),
    "1 of 32k, 8 bits": (128, 2, 32, 256),
    "16 of 4k": (32, 4, 4, 512),
    "16 of 4k, 8 bits": (128, 2, 2, 256),
    "16 of 4k, V in 8 bits": (128, 2, 2, 256),
    "64 of 8k": (32, 4, 1, 512),
    "64 of 8k, 8 bits": (64, 4, 1, 512),
    "64 of 4k, heads of 64": (64, 4, 1, 512),
    "128 of 2k": (32, 4, 1, 1024),
    "1 of 19,220, heads of 64": (64, 3, 43, 344),
    "139 of 890, one head": (32, 4, 3, 417),
    "19 of 7,680, heads of 64": (64, 4, 12, 456),
    "65 of 12,800, heads of 64": (64, 4, 4, 520),
    "1 of 600, heads of 64": (64, 3, 10, 80),
    "70 of 4k, just more than a wave": (32, 4, 2, 1120),
}
NEARLY_EMPTY = 0.25  # of a wave
BETTER = 0.95  # of a plan's time


@pytest.fixture(scope="module")
def plans() -> dict[str, dict[str, Any]]:
    """Of every decode of the table, from the kernels' own code."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.paged_decode_plans"],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", EQUAL)
def test_sequences_of_one_length_are_cut_as_planned_by_hand(plans: dict[str, dict[str, Any]], name: str) -> None:
    plan = plans[name]
    columns, _warps, programs = plan["tiles"]
    assert (columns, programs, plan["splits"], plan["items"]) == EQUAL[name]


@pytest.mark.parametrize("name", DECODES)
def test_no_last_wave_is_nearly_empty_where_another_cut_is_faster(plans: dict[str, dict[str, Any]], name: str) -> None:
    """With every length counted: the estimate that programs plan by must not miss a wave that the true lengths need."""
    plan = plans[name]
    is_faster_elsewhere = plan["best_time"] < BETTER * plan["time"]
    assert not (0 < plan["waves"] % 1 <= NEARLY_EMPTY and is_faster_elsewhere), plan


@pytest.mark.parametrize(
    ("units", "waves"), [(1, 1), (176, 1), (177, 2), (528, 2), (529, 3), (1056, 3), (1057, 2), (10_000, 2)]
)
def test_room_for_a_third_wave_is_made_where_a_second_would_be_nearly_empty(units: int, waves: int) -> None:
    """And for one alone where few units can be cut to fit it: programs without an item cost a wave of their own."""
    assert most_waves(units, 528) == waves


@pytest.mark.parametrize(
    ("width", "units", "invariant", "merged"),
    [
        pytest.param(64, 64, False, (8, 8), id="few units with heads of 64"),
        pytest.param(64, 65, False, (0, 0), id="more of them: a second kernel"),
        pytest.param(128, 4096, False, (8, 8), id="any number with heads of 128"),
        pytest.param(128, 8, True, (0, 0), id="sums that are those of any batch: a second kernel"),
    ],
)
def test_the_last_split_merges_where_it_pays(width: int, units: int, invariant: bool, merged: tuple[int, int]) -> None:
    """Of a tile of 5 rows: (rows as a power of two, splits at a time)."""
    assert merging(5, units, {"BLOCK_DV": width, "INVARIANT": invariant, "num_warps": 4}) == merged
