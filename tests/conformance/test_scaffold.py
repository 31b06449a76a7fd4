"""`attn-backends new`: what it writes works from the first minute, up to a certificate and being selected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from attn_backends.conformance.scaffold.project import FILES, ScaffoldError, class_name, render, write_project
from attn_backends.registry.manifest import read_manifest_file

PROGRAM = (sys.executable, "-m", "attn_backends.cli.main")


def test_every_file_is_there_and_reads(tmp_path):
    """Manifest, entry point and modules are legal, and no placeholder is left."""
    written = write_project("my_fa", tmp_path / "new" / "place")
    root = tmp_path / "new" / "place"
    assert len(written) == len(FILES)
    assert not [path for path in written if "%%" in path.read_text()]
    manifest = read_manifest_file(root / "src" / "my_fa" / "backend.toml", label="x", origin="third_party")
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["attn_backends.backends"] == {"my_fa": "my_fa:backend.toml"}
    assert (manifest.name, manifest.version) == ("my_fa", project["version"])
    for path in root.rglob("*.py"):
        compile(path.read_text(), str(path), "exec")


@pytest.mark.parametrize(
    ("name", "said"),
    [("My-FA", "'my_fa' would be"), ("my__fa", "no name"), ("9fa", "no name"), ("", "no name"), ("../fa", "no name"), ("fa_", "no name"),
     ("class", "word of Python"), ("json", "word of Python"), ("torch", "another package"), ("eager", "built-in"), ("fa\n", "no name")],
)  # fmt: skip
def test_an_illegal_name_is_refused(tmp_path, name, said):
    """With the reason, and nothing written."""
    with pytest.raises(ScaffoldError, match=said):
        write_project(name, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["pyproject.toml", "src/my_fa/adapter.py"])
def test_nothing_is_overwritten(tmp_path, path):
    """One file in the way, and no file is touched."""
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("mine")
    with pytest.raises(ScaffoldError, match="already; nothing was written"):
        write_project("my_fa", tmp_path)
    assert [one.read_text() for one in tmp_path.rglob("*") if one.is_file()] == ["mine"]


def test_names_in_the_files():
    """The class is named as a class, the distribution with dashes."""
    texts = render("my_fa_2")
    assert class_name("my_fa_2") == "TestMyFa2"
    assert 'name = "my-fa-2"' in texts["pyproject.toml"]
    assert "class TestMyFa2(BackendConformance):" in texts["tests/test_conformance.py"]


class Machine:
    """A folder of packages, a folder of the user's data; every command runs in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.project, self.site, self.data = folder / "my_fa", folder / "site", folder / "data"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(self.site),
            "XDG_DATA_HOME": str(self.data),
            "COLUMNS": "200",
        }

    def run(self, *words: str, code: int = 0, cwd: Path | None = None) -> str:
        done = subprocess.run(words, env=self.environment, cwd=cwd, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{words}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def standing(self) -> tuple[str, list[str]]:
        """Who serves a call on the CPU, and why not my_fa."""
        words = (
            "explain",
            "--device",
            "here",
            "--dtype",
            "float32",
            "--heads",
            "4/2",
            "--head-dim",
            "40",
            "--seq",
            "64",
            "--json",
        )
        decision = json.loads(self.run(*PROGRAM, *words))
        mine = next(one for one in decision["candidates"] if one["name"] == "my_fa")
        return decision["backend"], [reason["code"] for reason in mine["reasons"]]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the folder of the user's data is set by XDG_DATA_HOME")
def test_the_whole_path(tmp_path):
    """Scaffold, sdist, install, run, certify, selected; and one byte later not certified again."""
    machine = Machine(tmp_path)
    machine.run(*PROGRAM, "new", "my_fa", "--dir", str(machine.project))
    machine.run(sys.executable, "-m", "build", "--sdist", "--no-isolation", str(machine.project))
    (sdist,) = (machine.project / "dist").glob("my_fa-0.1.0.tar.gz")
    pip = (
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--disable-pip-version-check",
    )
    machine.run(sys.executable, "-m", *pip, "--target", str(machine.site), str(sdist))

    chosen, why = machine.standing()
    assert (chosen != "my_fa", why) == (True, ["not_certified"])

    causal = machine.run(*PROGRAM, "conformance", "run", "my_fa", "--only", "CAUSAL").splitlines()[-1]
    assert causal.startswith("my_fa 0.1.0: PARTIAL RUN PASSED, spec 1.0 quick")
    tests = ("-p", "no:randomly", "-q", "-k", "refused-dtype or s1x1-")
    assert " passed" in machine.run(sys.executable, "-m", "pytest", *tests, cwd=machine.project)
    report = tmp_path / "report"
    said = machine.run(*PROGRAM, "conformance", "run", "my_fa", "--certify", "--unmeasured", "--out", str(report))
    assert said.splitlines()[-1].startswith("my_fa 0.1.0: CONFORMS spec 1.0 full")
    assert sorted(path.name for path in report.iterdir()) == ["junit.xml", "report.html", "report.json", "report.md"]

    assert machine.standing() == ("my_fa", [])
    adapter = machine.site / "my_fa" / "adapter.py"
    adapter.write_bytes(adapter.read_bytes() + b"\n")
    assert machine.standing()[1] == ["not_certified"]
    assert "the sources have changed" in machine.run(*PROGRAM, "conformance", "certificates", "my_fa", code=1)
