"""How paged_decode's second kernel shares out the rows of tiles: programs, not times."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="the launch imports the kernels")

from attn_backends.backends.paged_decode.launch import combined_rows


@pytest.mark.parametrize(
    ("rows", "units", "invariant", "combined"),
    [
        pytest.param(64, 16, False, 4, id="a prefix of 128 rows for each of 8 KV heads"),
        pytest.param(64, 32, False, 8, id="twice as many"),
        pytest.param(64, 33, False, 16, id="a program for every multiprocessor"),
        pytest.param(16, 8, False, 4, id="not even so"),
        pytest.param(64, 16, True, 16, id="sums that are those of any batch"),
    ],
)
def test_few_tiles_are_combined_by_more_programs(rows: int, units: int, invariant: bool, combined: int) -> None:
    """On 132 multiprocessors."""
    assert combined_rows(rows, units, 132, invariant=invariant) == combined
