"""The modelled schedule: nothing runs twice or too early, no schedule beats its bound, and overlap is won where it should."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from attn_backends.pipeline.budget import Budget
from attn_backends.pipeline.chip import BLACKWELL, CHIPS, HOPPER
from attn_backends.pipeline.drawing import draw_svg, draw_text, drawn
from attn_backends.pipeline.plan import Plan
from attn_backends.pipeline.timeline import UNITS, timeline
from attn_backends.pipeline.waves import waves

SCHEDULES = [(q_tiles, s_stages) for q_tiles in (1, 2) for s_stages in (1, 2)]


def made(q_tiles=2, s_stages=2, head_dim=128, chip=HOPPER, lengths=None, **changes):
    return timeline(Plan(head_dim=head_dim, q_tiles=q_tiles, s_stages=s_stages, **changes), chip, lengths)


@pytest.mark.parametrize("chip", CHIPS.values(), ids=list(CHIPS))
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(("q_tiles", "s_stages"), SCHEDULES)
def test_a_unit_does_one_thing_at_a_time(chip, head_dim, q_tiles, s_stages) -> None:
    line = made(q_tiles, s_stages, head_dim, chip)
    for unit in UNITS:
        tasks = sorted((task for task in line.tasks if task.unit == unit), key=lambda task: task.start)
        assert all(first.end <= second.start + 1e-6 for first, second in pairwise(tasks))


@pytest.mark.parametrize(("q_tiles", "s_stages"), SCHEDULES)
def test_work_follows_what_it_needs(q_tiles, s_stages) -> None:
    """Scores after their keys, softmax after its scores, values after softmax; a buffer is not filled while it is read."""
    line = made(q_tiles, s_stages)
    at = {(task.kind, task.tile, task.step): task for task in line.tasks}
    assert len(at) == len(line.tasks) == 8 * (3 * q_tiles + 2)
    for (kind, tile, step), task in at.items():
        if kind == "S":
            assert task.start >= at["K", 0, step].end
        elif kind == "E":
            assert task.start >= at["S", tile, step].end
        elif kind == "P":
            assert task.start >= max(at["E", tile, step].end, at["V", 0, step].end)
        elif step >= 2:
            reader = "S" if kind == "K" else "P"
            assert task.start >= max(at[reader, one, step - 2].end for one in range(q_tiles))


@pytest.mark.parametrize("chip", CHIPS.values(), ids=list(CHIPS))
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(("q_tiles", "s_stages"), SCHEDULES)
def test_no_schedule_beats_its_bound(chip, head_dim, q_tiles, s_stages) -> None:
    """(Tm + Te) / max(Tm, Te), which is at most 2."""
    line = made(q_tiles, s_stages, head_dim, chip)
    assert line.overlap <= line.bound <= 2
    assert line.rate <= 1


def test_the_bound_is_the_arithmetic_of_the_notes() -> None:
    """Heads of 128: products take twice the exponentials' time on Hopper, as long as they on Blackwell."""
    assert made().bound == pytest.approx(1.5)
    assert made(chip=BLACKWELL).bound == pytest.approx(2)
    assert made(head_dim=64).bound == pytest.approx(2)


def test_each_way_to_overlap_wins_over_none() -> None:
    serial = made(1, 1).overlap
    assert made(1, 2).overlap > 1.2 * serial
    assert made(2, 1).overlap > 1.2 * serial


def test_unequal_query_tiles_cost_under_dual_q() -> None:
    """The longer tile's last step has nobody to alternate with."""
    assert made(2, 1, lengths=(7, 8)).rate < made(2, 1, lengths=(8, 8)).rate


@pytest.mark.parametrize("lengths", [(8,), (8, 8, 8), (0, 8)])
def test_lengths_that_are_none(lengths) -> None:
    with pytest.raises(ValueError, match="2 query tiles"):
        made(lengths=lengths)


def test_few_blocks_leave_multiprocessors_idle() -> None:
    budget = Budget(plan=Plan(head_dim=128), chip=HOPPER)
    assert waves(budget, seq=1024, heads=1).balance == pytest.approx(8 / 132)
    assert waves(budget, seq=1024, heads=264).balance == 1
    assert waves(budget, seq=128, heads=133).balance == pytest.approx(133 / 264)


def test_the_longest_first_fills_the_device_under_a_diagonal() -> None:
    budget = Budget(plan=Plan(head_dim=128, causal=True), chip=HOPPER)
    assert waves(budget, seq=16384, heads=16).balance > 0.98


def test_the_drawing_has_a_row_per_unit_of_the_width_that_was_asked_for() -> None:
    lines = draw_text(made(1, 1), 200)
    assert [line.split("  ")[0] for line in lines] == list(UNITS)
    assert max(map(len, lines)) <= 12 + 200
    assert "S0.0" in lines[0]


def test_a_piece_without_room_for_its_name_has_its_first_letter() -> None:
    """So that products of scores and of weights can be told apart on a narrow screen."""
    tensor_core, softmax, _copies = draw_text(made(2, 1), 60)
    assert {"S", "P"} <= set(tensor_core[12:]) <= set("SP-| ")
    assert set(softmax[12:]) <= set("E-| ")


def test_a_piece_of_one_character_is_its_letter() -> None:
    """Its end gives way: a row of bars says nothing of what runs."""
    plan = Plan(head_dim=128, rows=BLACKWELL.rows, q_tiles=4, s_stages=2)
    tensor_core = draw_text(timeline(plan, BLACKWELL), 67)[0][12:]
    assert "||" not in tensor_core
    assert {"S", "P"} <= set(tensor_core)


@pytest.mark.parametrize("steps", [8, 64])
@pytest.mark.parametrize("chip", CHIPS.values(), ids=list(CHIPS))
@pytest.mark.parametrize(("q_tiles", "s_stages"), SCHEDULES)
def test_no_piece_hides_another_one(chip, q_tiles, s_stages, steps) -> None:
    """Every product has its letter, in order, up to where a drawing of too many pieces ends."""
    line = made(q_tiles, s_stages, 128, chip, (steps,) * q_tiles)
    letters = re.sub("[^SP]", "", draw_text(line, 67)[0][12:])
    order = "".join(task.kind for task in sorted(line.tasks, key=lambda task: task.start) if task.kind in "SP")
    assert order.startswith(letters)
    assert len(letters) >= min(len(order), 20)
    assert (letters == order) == (drawn(line, 67) == 1)


def test_the_picture_has_a_box_per_piece_of_work() -> None:
    line = made()
    picture = draw_svg(line)
    assert len(re.findall("<rect", picture)) == len(line.tasks)
    assert "dual Q, dual S" in picture
