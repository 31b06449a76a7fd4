"""Every field case, and our own further instances of the same rules, through the selector and through each backend here.

FIELD_CASES=path/to/cases.toml runs another file of the format instead; FIELD_CASES_DEVICE=cuda puts the tensors on a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attn_backends import list_backends
from attn_backends.conformance.field_cases import SHIPPED, Case, read_cases, run_case

MORE = Path(__file__).with_name("more_cases.toml")
DEVICE = os.environ.get("FIELD_CASES_DEVICE", "cpu")
FILES = (Path(os.environ["FIELD_CASES"]),) if "FIELD_CASES" in os.environ else (SHIPPED, MORE)
CASES = tuple(case for file in FILES for case in read_cases(file))
KIND = DEVICE.partition(":")[0]
BACKENDS = tuple(m.name for m in list_backends() if any(KIND in box.raw.get("device", ["cuda"]) for box in m.boxes))


def _label(case: Case, dtype: str | None) -> str:
    return f"{case.id}-{dtype}" if dtype else case.id


SELECTED = [pytest.param(case, dtype, id=_label(case, dtype)) for case in CASES for dtype in case.dtypes]
FORCED = [
    pytest.param(backend, case, dtype, id=f"{backend}-{_label(case, dtype)}")
    for backend in BACKENDS
    for case in CASES
    if case.kind in ("value", "property") and "rig" in case.table
    for dtype in case.dtypes
]


@pytest.mark.parametrize(("case", "dtype"), SELECTED)
def test_the_selector_meets_the_case(case, dtype):
    """What the case expects is what the package does."""
    outcome = run_case(case, dtype, device=DEVICE)
    assert outcome.status == "passed", str(outcome)


@pytest.mark.parametrize(("backend", "case", "dtype"), FORCED)
def test_each_backend_serves_the_case_or_says_that_it_does_not(backend, case, dtype, record_property):
    """A backend that takes the call gives the case's numbers; eager takes every one."""
    outcome = run_case(case, dtype, backend=backend, device=DEVICE)
    record_property(f"field cases, {backend}", outcome.status)
    allowed = ("passed",) if backend == "eager" else ("passed", "refused")
    assert outcome.status in allowed, str(outcome)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_backend_refuses_nearly_everything(backend):
    """A backend that this machine runs serves at least a quarter of the shipped cases, so that the table above tests it."""
    statuses = [
        run_case(case, case.dtypes[0], backend=backend, device=DEVICE).status
        for case in read_cases()
        if case.kind in ("value", "property") and "rig" in case.table
    ]
    assert statuses.count("passed") >= len(statuses) // 4, statuses


def test_our_own_instances_are_many():
    """At least 60 cases of our own stand beside the shipped ones, over all kinds."""
    own = read_cases(MORE)
    assert len(own) >= 60
    assert {case.kind for case in own} == {"value", "property", "request-error", "decision"}


def test_decisions_need_no_torch():
    """Decision cases run in an interpreter that cannot import torch, triton or numba."""
    script = (
        "import sys\n"
        "for name in ('torch', 'triton', 'numba'): sys.modules[name] = None\n"
        "from attn_backends.conformance.field_cases import read_cases, run_case\n"
        "cases = [c for c in read_cases() if not c.needs_tensors]\n"
        "assert len(cases) > 20\n"
        "failed = [str(o) for o in map(run_case, cases) if o.status != 'passed']\n"
        "assert not failed, failed\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


# -- the door ----------------------------------------------------------------------------------------------------------

WRONG = """
[[case]]
id = "wrong-on-purpose"
family = "demo"
kind = "value"
rig = "uniform"
shape = {seq_k = 3}
expect = [7.0]
[[case]]
id = "right"
family = "demo"
kind = "value"
rig = "uniform"
shape = {seq_k = 3}
expect = [1.0]
"""


def _door(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "attn_backends.conformance.field_cases", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_door_says_what_was_expected_and_got(tmp_path):
    """A failed case gives exit code 1 and both numbers."""
    file = tmp_path / "cases.toml"
    file.write_text(WRONG)
    done = _door(str(file))
    assert done.returncode == 1
    assert "wrong-on-purpose [float32]" in done.stdout
    assert "expected [7.0], got [1.0]" in done.stdout
    assert "3 passed, 3 failed, 0 refused" in done.stdout


def test_the_door_says_which_rule_each_case_checks(tmp_path):
    """In every line and in JSON; a case that names none stands alone."""
    file = tmp_path / "cases.toml"
    file.write_text(WRONG.replace('id = "right"', 'id = "right"\nclause = "without causal every key is visible"'))
    lines = _door(str(file)).stdout.splitlines()
    assert "passed   right [float16]: without causal every key is visible" in lines
    assert "failed   wrong-on-purpose [float16]" in lines
    clauses = {one["case"]: one["clause"] for one in json.loads(_door(str(file), "--json").stdout)["outcomes"]}
    assert clauses == {"right": "without causal every key is visible", "wrong-on-purpose": ""}


def test_the_door_writes_json_of_one_family():
    """--only picks a family, --json gives one document, exit code 0 when all is well."""
    done = _door("--only", "cache", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert report["counts"] == {"passed": len(report["outcomes"])}


def test_the_door_counts_refusals(tmp_path):
    """A backend that refuses a case is reported and fails nothing."""
    done = _door("--backend", "sdpa_cpu_flash", "--only", "sinks")
    assert done.returncode == 0, done.stdout
    assert "refused  sink-one-key [float32]" in done.stdout


@pytest.mark.parametrize("arguments", [("no-such-file.toml",), ("--only", "no-such-family")])
def test_the_door_knows_when_there_is_nothing(arguments):
    """A missing file or family is exit code 2, not success."""
    assert _door(*arguments).returncode == 2
