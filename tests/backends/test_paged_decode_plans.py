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
from tests.backends.paged_decode_plans import DECODES, TURNS

EQUAL = {  # sequences of one length -> keys of a tile, programs per multiprocessor, splits, items
    "1 of 32k": (64, 2, 32, 256),
    "1 of 32k, 8 bits": (128, 2, 32, 256),
    "16 of 4k": (64, 3, 3, 384),
    "16 of 4k, 8 bits": (128, 2, 2, 256),
    "16 of 4k, V in 8 bits": (128, 2, 2, 256),
    "64 of 8k": (32, 4, 1, 512),
    "64 of 8k, 8 bits": (64, 4, 1, 512),
    "64 of 4k, heads of 64": (64, 4, 1, 512),
    "128 of 2k": (32, 4, 1, 1024),
    "1 of 19,220, heads of 64": (64, 2, 31, 248),
    "139 of 890, one head": (64, 3, 2, 278),
    "19 of 7,680, heads of 64": (64, 3, 10, 380),
    "65 of 12,800, heads of 64": (64, 4, 4, 520),
    "1 of 600, heads of 64": (64, 2, 10, 80),
    "70 of 4k, just more than a wave": (32, 4, 2, 1120),
}
NEARLY_EMPTY = 0.25  # of a wave
BETTER = 0.95  # of a plan's time


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """What the kernels' own code says of both tables."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.paged_decode_plans"],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def plans(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of every decode."""
    found: dict[str, dict[str, Any]] = answer["plans"]
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
    ("rows", "width", "invariant", "merged"),
    [
        pytest.param(5, 64, False, (8, 8), id="heads of 64"),
        pytest.param(5, 128, False, (8, 8), id="heads of 128"),
        pytest.param(16, 128, False, (16, 4), id="as many rows as pay"),
        pytest.param(17, 128, False, (0, 0), id="more of them: a second kernel"),
        pytest.param(5, 128, True, (0, 0), id="sums that are those of any batch: a second kernel"),
    ],
)
def test_the_last_split_merges_where_it_pays(rows: int, width: int, invariant: bool, merged: tuple[int, int]) -> None:
    """(rows as a power of two, splits at a time)."""
    assert merging(rows, {"BLOCK_DV": width, "INVARIANT": invariant, "num_warps": 4}) == merged


@pytest.mark.parametrize("name", TURNS)
def test_every_item_of_a_packed_batch_has_one_place(answer: dict[str, Any], name: str) -> None:
    """Of either kind in order; a place behind them all leads behind the last."""
    many, few, _kv_heads, _slots = TURNS[name]
    *found, beyond = answer["turns"][name]
    assert [number for kind, number in found if not kind] == list(range(many))
    assert [number for kind, number in found if kind] == list(range(few))
    assert beyond[1] >= (few if beyond[0] else many)


def test_decodes_come_in_turn_with_prompts_and_half_a_wave_of_them_last(answer: dict[str, Any]) -> None:
    """264 slots and 8 KV heads: 16 of 63 decodes, the others evenly among the prompts."""
    kinds = [kind for kind, _number in answer["turns"]["a chunk of a prompt and 63 decodes"]][:-1]
    assert kinds[-16:] == [1] * 16
    mixed = kinds[:-16]
    assert all(abs(sum(mixed[:place]) - place * 47 / 175) <= 1 for place in range(len(mixed)))
