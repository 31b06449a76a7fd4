"""Regret: shapes from a seed, picks by three grounds, and what a report makes of times that are told."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from attn_backends import Device, Registry
from attn_backends.bench.cell_run import cell_record
from attn_backends.bench.results import CAPPED, OK, Results
from attn_backends.calibrate import regret_run
from attn_backends.calibrate.grid import grid_table
from attn_backends.calibrate.held_out import STEP, held_out, shapes_in
from attn_backends.calibrate.picks import COST_MODEL, MEASURED, PRIORITY
from attn_backends.calibrate.regret import report
from attn_backends.cli.main import cli
from attn_backends.selector.times import NO_TIMES, FixedTimes

H200 = Device.pretend("h200")


def results(told, seed=5):
    """A file of the first shapes of a seed with the times that are told: one dict of milliseconds per shape."""
    suite = held_out("cuda", seed, "full")
    shapes = [cell for cell in suite.cells if not cell.id.endswith(STEP)][: len(told)]
    records = {}
    for cell, times in zip(shapes, told, strict=True):
        found = {
            name: {"status": CAPPED, "why": ms} if isinstance(ms, str) else {"status": OK, "device_ms": {"median": ms}}
            for name, ms in times.items()
        }
        records[cell.id] = {**cell_record(cell, H200), "results": found}
    head = {
        "device": H200.to_json(),
        "device_name": "x",
        "versions": {},
        "seed": seed,
        "size": "full",
        "commands": [],
        "method": "m",
    }
    return Results(head, records)


def test_the_shapes_follow_from_the_seed():
    """The same seed, the same shapes; another one, others; at least a hundred, of every phase and mask."""
    one = held_out("cuda", 1, "full")
    assert one == held_out("cuda", 1, "full")
    assert {cell.id for cell in one.cells}.isdisjoint({cell.id for cell in held_out("cuda", 2, "full").cells})
    assert shapes_in(one) >= 100
    panels = {cell.panel for cell in one.cells}
    assert {
        "prefill full",
        "prefill causal",
        "prefill causal gqa",
        "prefill window gqa",
        "decode gqa",
        "append gqa",
        "mixed gqa",
        "backward causal gqa",
    } <= panels


@pytest.mark.parametrize("seed", range(5))
def test_shapes_lie_within_the_grid(seed):
    """Between its smallest and its largest sizes, and never above its work."""
    table = grid_table("cuda")
    longest = max(max(kind.get("keys", kind["seq"])) for kind in table["kinds"])
    for cell in held_out("cuda", seed, "full").cells:
        (first, new, keys), *others = cell.sequences
        assert 1 <= new <= keys <= longest
        assert 4.0 * first * new * keys * cell.num_q_heads * cell.head_dim <= table["work"]
        assert 4 <= cell.batch * cell.num_kv_heads <= 512
        if cell.phase == "mixed":
            assert (first, others) == (1, [(cell.batch - 1, 1, keys)])
        else:
            assert not others


def test_regret_is_the_picks_time_over_the_best():
    """Told times: the model picks one, priority another, and the best is a third."""
    told = [
        {"sdpa_cudnn": 1.0, "triton_tiled": 2.0, "sdpa_flash": 4.0},
        {"sdpa_cudnn": 3.0, "triton_tiled": 1.0, "sdpa_flash": 2.0},
    ]
    made = report(results(told), Registry(autoload=False), FixedTimes.of({"sdpa_flash": 1.0}))
    measured = made.summary(MEASURED)
    assert measured is not None
    assert (measured.mean, measured.worst) == (pytest.approx((4.0 * 2.0) ** 0.5), 4.0)
    assert measured.worst_shape == made.shapes[0].id
    assert made.measured == 2
    assert [one.picks[MEASURED] for one in made.shapes] == ["sdpa_flash"] * 2
    by_priority = [one.regret(PRIORITY) for one in made.shapes]
    assert by_priority == [told[i][one.picks[PRIORITY]] / min(told[i].values()) if one.picks[PRIORITY] in told[i] else None
                           for i, one in enumerate(made.shapes)]  # fmt: skip
    assert made.peers(0.0) == (1, 2)


@pytest.mark.parametrize("shapes", [32, 64, 96])
def test_a_run_that_ends_early_has_its_share_of_every_kind(shapes):
    """Any first part of the shapes has of every kind and mask what it has of all, give or take one."""
    suite = held_out("cuda", 11, "full")
    kinds = [cell.id.split(":")[0].rsplit(" ", 1)[0] for cell in suite.cells if not cell.id.endswith(STEP)]
    for kind in set(kinds):
        assert abs(kinds[:shapes].count(kind) - kinds.count(kind) * shapes / len(kinds)) <= 1
    steps = [index for index, cell in enumerate(suite.cells) if cell.passes == "backward"]
    assert all(suite.cells[index - 1].id == suite.cells[index].id + STEP for index in steps)


FIRST = {"hopper": 1.0, "fa3": 1.1, "flashinfer": 1.5}


@pytest.mark.parametrize(
    ("name", "found", "why"),
    [
        ("hopper", FIRST, None),
        ("sdpa_math", FIRST, "predicted to take more than 2 times the best"),
        ("triton_tiled", {**FIRST, "triton_tiled": (1.5, 9.0)}, None),
        ("triton_tiled", {**FIRST, "triton_tiled": (1.5, 11.0)}, "first calls of more than 10 s"),
        ("fa3", {**FIRST, "fa3": (1.1, 11.0)}, None),
    ],
    ids=["near", "far", "cheap-loser", "dear-loser", "dear-and-near"],
)
def test_who_is_left_out_of_held_out_shapes(monkeypatch, name, found, why):
    """By the predictions, and by what it cost so far."""
    monkeypatch.setattr(regret_run, "device_of", lambda device: H200)
    made = results([])
    cell = next(one for one in held_out("cuda", 5, "full").cells if one.id.startswith("prefill full"))
    told = {one: ms if isinstance(ms, tuple) else (ms, 0.1) for one, ms in found.items()}
    made.cells[cell.id] = {"results": {
        one: {"status": OK, "device_ms": {"median": ms}, "first_call_s": first} for one, (ms, first) in told.items()
    }}  # fmt: skip
    said = regret_run._sparing(None, Registry(autoload=False))(made, cell, name)
    assert said is None if why is None else said.startswith(why)


def test_the_forward_of_a_step_is_timed_for_those_that_serve_the_step(monkeypatch):
    """No other time of it would count."""
    monkeypatch.setattr(regret_run, "device_of", lambda device: H200)
    cell = next(one for one in held_out("cuda", 5, "full").cells if one.id.endswith(STEP))
    spare = regret_run._sparing(None, Registry(autoload=False))
    assert spare(results([]), cell, "hopper") == "does not serve the training step"
    assert spare(results([]), cell, "sdpa_cudnn") is None


def test_a_training_step_is_its_forward_and_its_backward():
    """The two cells are one shape, whose times are sums; without both there is none."""
    suite = held_out("cuda", 5, "full")
    back = next(cell for cell in suite.cells if cell.passes == "backward")
    there = next(cell for cell in suite.cells if cell.id == back.id + STEP)
    made = results([])
    for cell, ms in ((there, 1.0), (back, 2.0)):
        outcome = {"status": OK, "device_ms": {"median": ms}}
        made.cells[cell.id] = {**cell_record(cell, H200), "results": {"sdpa_cudnn": outcome, "sdpa_flash": outcome}}
    (shape,) = report(made, Registry(autoload=False), NO_TIMES).shapes
    assert shape.times == {"sdpa_cudnn": 3.0, "sdpa_flash": 3.0}
    del made.cells[there.id]
    assert report(made, Registry(autoload=False), NO_TIMES).shapes == ()


def test_what_is_no_choice_is_not_counted():
    """One backend alone, nobody, and one that was capped."""
    told = [{"sdpa_cudnn": 1.0}, {}, {"sdpa_cudnn": 1.0, "flex": "compiles anew for most shapes"}]
    made = report(results(told), Registry(autoload=False), NO_TIMES)
    assert (len(made.shapes), made.alone, made.unserved) == (1, 1, 1)
    assert made.capped == {"flex": {"compiles anew for most shapes": 1}}
    assert made.shapes[0].picks[PRIORITY] not in made.shapes[0].times
    assert made.to_json()["untimed_picks"][PRIORITY] == 1


@pytest.mark.parametrize(
    ("versions", "picked"),
    [
        ({"torch": "2.11.0", "fa3-fwd": "0.0.3"}, "fa3"),
        ({"torch": "2.11.0"}, "sdpa_cudnn"),
        ({"torch": "2.11.0", "triton": "3.6.0"}, "hopper"),
    ],
    ids=["FlashAttention-3", "torch alone", "triton"],
)
def test_a_file_is_judged_with_what_was_installed_where_it_was_timed(versions, picked):
    """Whatever is installed where it is read."""
    made = results([{"fa3": 1.0, "sdpa_cudnn": 1.0, "hopper": 1.0}])
    made.head["device"] = {name: value for name, value in H200.to_json().items() if name != "pretended"}
    made.head["versions"] = versions
    (shape,) = report(made, Registry(autoload=False), NO_TIMES).shapes
    assert shape.picks[COST_MODEL] == picked


@pytest.mark.parametrize("text", ["", "{}", '{"calibrated": null}', '{"calibrated": {"places": []}}'])
def test_a_file_without_calibrated_times_is_none_to_judge_by(tmp_path, text):
    """Said before anything is timed."""
    (tmp_path / "regret.json").write_text(text)
    found = CliRunner().invoke(
        cli, ["regret", "--device", "cpu", "--judge-only", "--database", str(tmp_path / "regret.json")]
    )
    assert found.exit_code == 2
    assert "regret.json has no calibrated times" in found.output


@pytest.mark.slow
def test_the_command_resumes_and_reports(tmp_path):
    """Two runs on the CPU: the first one has no time, the second one times, judges and writes."""
    arguments = [
        "regret",
        "--device",
        "cpu",
        "--seed",
        "3",
        "--out",
        str(tmp_path),
        "--database",
        str(tmp_path / "none.sqlite"),
    ]
    first = CliRunner().invoke(cli, [*arguments, "--minutes", "0.0001", "--json"])
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["shapes_left"] > 0
    second = CliRunner().invoke(cli, arguments)
    assert second.exit_code == 0, second.output
    assert "geometric mean, and worst" in second.output
    written = json.loads((tmp_path / "regret.json").read_text())
    assert written["shapes_left"] == 0
    assert all(one.startswith("attn-backends regret --") for one in written["head"]["commands"])
    assert written["shapes_with_a_choice"] == 6
    assert all(one["regret"][PRIORITY] >= 1 for one in written["shapes"] if one["regret"][PRIORITY] is not None)
    third = CliRunner().invoke(cli, [*arguments, "--judge-only", "--json"])
    assert json.loads(third.stdout)["shapes"] == written["shapes"]
