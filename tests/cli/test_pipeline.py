"""`attn-backends pipeline`: the table, the numbers and the pictures."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from attn_backends import Device
from attn_backends.cli.main import cli
from attn_backends.cli.piped import chip_of


def run(*arguments: str, code: int = 0) -> str:
    found = CliRunner().invoke(cli, ["pipeline", *arguments])
    assert found.exit_code == code, found.output
    return found.output


def test_four_schedules_with_their_budgets_and_drawings() -> None:
    said = run("--head-dim", "128")
    for name in ("serial", "single Q, dual S", "dual Q, single S", "dual Q, dual S"):
        assert name in said
    assert said.count("tensor core ") >= 4


def test_json_has_what_the_table_has() -> None:
    found = json.loads(run("--head-dim", "64", "--q-tiles", "3", "--stages", "3", "--seq", "4096", "--json"))
    one = found["schedules"][-1]
    assert one["schedule"] == "triple Q, dual S"
    assert one["fits"]
    assert one["overlap"]["modelled"] <= one["overlap"]["possible"]
    assert one["waves"]["blocks"] == 64 * -(-4096 // 192)


def test_what_does_not_fit_is_said_and_ends_with_1() -> None:
    said = json.loads(run("--head-dim", "256", "--keys", "128", "--json", code=1))
    assert not any(one["fits"] for one in said["schedules"])


def test_blackwell_counts_tensor_memory() -> None:
    one = json.loads(
        run("--head-dim", "128", "--device", "blackwell", "--q-tiles", "2", "--s-stages", "1", "--json", code=1)
    )
    assert one["schedules"][0]["budget"]["tensor memory"] == {"used": 512, "limit": 512}


def test_pictures_are_written(tmp_path) -> None:
    run("--head-dim", "128", "--svg", str(tmp_path / "pictures"))
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == [
        "dual-q-dual-s.svg", "dual-q-single-s.svg", "serial.svg", "single-q-dual-s.svg"
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", [["--head-dim", "0"], []])
def test_wrong_questions_end_with_2(wrong: list[str]) -> None:
    run(*wrong, code=2)


@pytest.mark.parametrize("device", ["volta", "v100", "mi300x", "cpu", "sm_120"])
def test_a_device_that_is_not_modelled_is_told_which_are(device: str) -> None:
    """Also one that every other command knows."""
    said = run("--head-dim", "64", "--device", device, code=2)
    assert "no pipeline is modelled of" in said
    assert "hint: modelled are hopper, blackwell, h100, h200, b200, sm_90, sm_100" in said


@pytest.mark.parametrize(
    ("device", "chip"),
    [("hopper", "hopper"), ("H200", "hopper"), ("sm_90", "hopper"), ("b200", "blackwell"), ("10.0", "blackwell")],
)
def test_a_device_is_named_as_everywhere(device: str, chip: str) -> None:
    """By its name, its architecture, or the chip's."""
    found = json.loads(run("--head-dim", "64", "--device", device, "--json"))
    assert found["device"] == chip
    assert ("tensor memory" in found["schedules"][0]["budget"]) == (chip == "blackwell")


def test_a_device_has_its_own_multiprocessors(monkeypatch) -> None:
    """Waves are of those, and not of the chip's largest part."""
    cut = Device.pretend("h200", num_sms=78)
    monkeypatch.setattr(Device, "current", lambda: cut)
    assert chip_of("here").multiprocessors == 78
    assert chip_of("h200").multiprocessors == 132


def test_the_name_of_before_still_serves() -> None:
    """Unsaid in the help."""
    words = ("--head-dim", "64", "--json")
    assert run(*words, "--chip", "blackwell") == run(*words, "--device", "blackwell")
    assert "--chip" not in run("--help")
