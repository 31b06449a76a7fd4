"""`attn-backends roofline`: what it says besides its table."""

from __future__ import annotations

from pathlib import Path

import pytest

RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "h200"
NOTE = "chosen for a range of sizes"


def test_a_file_behind_that_of_against_is_refused(run):
    """It would be judged by the first file alone."""
    files = [str(RECORDED / f"{name}.json") for name in ("prefill", "decode")]
    result = run("roofline", "--against", *files)
    assert result.exit_code == 2
    assert files[1] in result.stderr
    assert "--against A --against B" in result.stderr


@pytest.mark.parametrize("length", range(257, 1025, 64))
def test_it_says_where_the_choice_is_not_the_fastest_at_these_sizes(run, length):
    """A decision holds for a range of lengths, a prediction for one."""
    flags = ("--device", "h200", "--heads", "64/8", "--head-dim", "64", "--batch", "6", "--seq", str(length))
    shown = run("roofline", *flags).stdout
    rows = [line.split() for line in shown.splitlines() if "%" in line]
    times = {row[0]: float(row[1]) for row in rows if row[1].replace(".", "", 1).isdigit()}
    chosen = next(row[0] for row in rows if row[-1] == "chosen")
    assert (NOTE in shown) == (min(times.values()) < times[chosen])
