"""`log ...`: reading a log that the selector wrote."""

from __future__ import annotations

import json

import pytest

from attn_backends import Request, clear_cache, list_backends, register, unregister
from attn_backends.selector.explain import decide
from attn_backends.selector.policy import Policy

SMALL = {
    "dtype": "bfloat16", "seq_q": 64, "seq_k": 64, "num_q_heads": 8, "num_kv_heads": 2, "head_dim_qk": 64,
    "head_dim_v": 64,
}  # fmt: skip


def write_log(folder, monkeypatch, **arguments):
    """Three decisions into a folder; their records in order."""
    monkeypatch.setenv("ATTN_BACKENDS_LOG", str(folder))
    clear_cache()
    asked = [({}, "h200"), ({"softcap": 30.0}, "h200"), ({"phase": "decode", "seq_q": 1}, "cpu")]
    records = [decide(Request(**SMALL, **more) if "seq_q" not in more else Request(**{**SMALL, **more}), device=device, **arguments)
               for more, device in asked]  # fmt: skip
    monkeypatch.delenv("ATTN_BACKENDS_LOG")
    return [record.to_json() for record in records]


@pytest.fixture
def log(tmp_path, monkeypatch):
    """(folder, what was written to it)."""
    folder = tmp_path / "log"
    return str(folder), write_log(folder, monkeypatch)


def test_show_has_every_decision_in_order(run, run_json, log):
    """One row per decision."""
    folder, written = log
    assert [one["id"] for one in run_json("log", "show", folder)] == [one["id"] for one in written]
    shown = run("log", "show", folder).stdout
    for one in written:
        assert one["id"][:10] in shown
        assert one["backend"] in shown


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["--phase", "decode"], 1),
        (["--code", "softcap"], 1),
        (["--rejected", "sdpa_cpu_flash", "--code", "device"], 2),
        (["--backend", "nobody"], 0),
        (["--since", "1h"], 3),
        (["-n", "2"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_filters(run_json, log, words, count):
    """As many as match."""
    assert len(run_json("log", "show", log[0], *words)) == count


def test_why_takes_the_start_of_an_id(run, run_json, log):
    """The whole decision, drawn as `explain` draws it."""
    folder, written = log
    record = run_json("log", "why", written[1]["id"][:8], folder)
    assert record["candidates"] == written[1]["candidates"]
    shown = run("log", "why", written[1]["id"][:8], folder).stdout
    assert "softcap=30.0" in shown
    assert "logged" in shown


def test_an_unknown_id_is_exit_code_2(run, log):
    """And says how many records there are."""
    result = run("log", "why", "zzzz", log[0])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "3 records" in result.stderr


def test_stats_count(run, run_json, log):
    """The numbers of the library, and its words."""
    found = run_json("log", "stats", log[0])
    assert (found["records"], found["requests"]) == (3, 3)
    assert "softcap" in run("log", "stats", log[0]).stdout


def test_diff_tells_two_runs_apart(run, run_json, log, tmp_path, monkeypatch):
    """0 the same, 1 different; the change is named."""
    folder, written = log
    other = str(tmp_path / "other")
    write_log(tmp_path / "other", monkeypatch, policy=Policy(block={written[0]["backend"]}))
    assert run("log", "diff", folder, folder).exit_code == 0
    result = run("log", "diff", folder, other)
    assert result.exit_code == 1
    assert f"{written[0]['backend']} ({written[0]['source']}) -> " in result.stdout
    assert len(run_json("log", "diff", folder, other)["changed"]) >= 1


def test_replay_stands_until_something_changes(run, run_json, log):
    """The same registry decides the same; without a backend it does not, exit code 1."""
    folder, written = log
    assert run("log", "replay", folder).exit_code == 0
    gone = next(one for one in list_backends() if one.name == written[0]["backend"])
    unregister(gone.name)
    try:
        result = run("log", "replay", folder)
        changed = run_json("log", "replay", folder)["changed"]
    finally:
        register(gone)
    assert result.exit_code == 1
    assert f"backend: {gone.name} -> " in result.stdout
    assert written[0]["id"] in {one["id"] for one in changed}


def test_replay_does_not_write_to_the_log_it_reads(run, run_json, log, monkeypatch):
    """Reading leaves a log as it is, also where the knob names it."""
    folder, _written = log
    monkeypatch.setenv("ATTN_BACKENDS_LOG", folder)
    monkeypatch.setenv("ATTN_BACKENDS_BLOCK", "eager")
    run("log", "replay")
    assert len(run_json("log", "show")) == 3


def test_export_writes_one_page(run, run_json, log, tmp_path):
    """A page with every decision in it."""
    page = tmp_path / "page.html"
    assert run("log", "export", log[0], "-o", str(page), "--title", "Mine").exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "Mine" in text
    assert all(one["id"] in text for one in log[1])
    assert run_json("log", "export", log[0], "-o", str(page))["records"] == 3


@pytest.mark.parametrize("words", [("show",), ("stats",), ("replay",), ("why", "ab"), ("export",)], ids=" ".join)
def test_a_log_that_is_not_there_is_exit_code_2(run, words, tmp_path, monkeypatch):
    """With what to do about it."""
    monkeypatch.setenv("ATTN_BACKENDS_LOG", str(tmp_path / "nowhere"))
    result = run("log", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "ATTN_BACKENDS_LOG" in result.stderr


def test_a_time_that_is_none_is_exit_code_2(run, log):
    """And names what would be one."""
    result = run("log", "show", log[0], "--since", "yesterday")
    assert result.exit_code == 2
    assert "7d" in result.stderr


def test_terminal_escapes_of_a_log_stay_text(run, tmp_path, log):
    """Somebody else's log cannot drive this terminal."""
    record = json.loads(next((tmp_path / "log").glob("*.jsonl")).read_text().splitlines()[0])
    record["candidates"][-1]["reasons"][0]["message"] = "\x1b[31mred"
    (tmp_path / "other.jsonl").write_text(json.dumps(record) + "\n")
    assert "\x1b" not in run("log", "why", record["id"], str(tmp_path / "other.jsonl")).stdout
