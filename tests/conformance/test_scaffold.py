"""`attn-backends new`: what it writes works from the first minute, up to a certificate and being selected."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from attn_backends.conformance.scaffold.project import FILES, ScaffoldError, class_name, render, write_project
from attn_backends.registry.manifest import read_manifest_file

ROOT = Path(__file__).resolve().parents[2]


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


CALL = """
import torch
import attn_backends as ab
q, k, v = torch.randn(1, 64, 4, 40), torch.randn(1, 64, 2, 40), torch.randn(1, 64, 2, 40)
ab.attention(q, k, v, causal=True)
"""


class Machine:
    """A fresh virtual environment with the packages of this one, but attn-backends, and a user's folders of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.project = folder, folder / "my_fa"
        self.run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"), environment=os.environ)
        self.python = str(folder / "venv" / "bin" / "python")
        self.program = str(folder / "venv" / "bin" / "attn-backends")
        self.site = Path(self.run(self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        shared = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
        (self.site / "shared.pth").write_text(
            "\n".join(shared)
        )  # a plain path: editable installs there are not followed
        self.install(ROOT)

    def run(
        self, *words: str, code: int = 0, environment: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> str:
        own = {
            "XDG_DATA_HOME": str(self.folder / "data"),
            "ATTN_BACKENDS_LOG": str(self.folder / "log"),
            "COLUMNS": "200",
        }
        done = subprocess.run(
            words,
            env=environment or {**os.environ, **own},
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{words}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def install(self, project: Path) -> None:
        """Build the sdist of a project and install that; no index is asked."""
        dist = self.folder / "dist" / project.name
        self.run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(dist), str(project))
        (sdist,) = dist.glob("*.tar.gz")
        pip = ("pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed")
        self.run(self.python, "-m", *pip, "--disable-pip-version-check", str(sdist))

    def call(self) -> tuple[str, list[str]]:
        """Run attention on the CPU; who served it, by the log, and why my_fa did not."""
        self.run(self.python, "-c", CALL)
        decision = json.loads(self.run(self.program, "log", "show", "--json", "--last", "1"))[0]
        mine = next(one for one in decision["candidates"] if one["name"] == "my_fa")
        return decision["backend"], [reason["code"] for reason in mine["reasons"]]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the folder of the user's data is set by XDG_DATA_HOME")
def test_the_whole_path(tmp_path):
    """What the README says, word for word: scaffold, install, run, certify, selected; and one byte later not any more."""
    machine = Machine(tmp_path)
    assert "site-packages" in machine.run(machine.python, "-c", "import attn_backends; print(attn_backends.__file__)")
    machine.run(machine.program, "new", "my_fa")
    machine.install(machine.project)

    chosen, why = machine.call()
    assert (chosen != "my_fa", why) == (True, ["not_certified"])
    quick = machine.run(machine.program, "conformance", "run", "my_fa").splitlines()[-1]
    assert quick.startswith("my_fa 0.1.0: CONFORMS spec 1.0 quick")
    assert machine.call()[1] == ["not_certified"]  # a good run is not yet a certificate
    tests = machine.run(machine.python, "-m", "pytest", "-q", "-p", "no:randomly", cwd=machine.project)
    assert re.search(r"^\d+ passed", tests.splitlines()[-1]), tests

    report = tmp_path / "report"
    # The suite's own test, which --certify would run here for minutes, is test_self_test's.
    certify = ("conformance", "run", "my_fa", "--certify", "--unmeasured", "--out", str(report))
    said = machine.run(machine.program, *certify).splitlines()
    assert re.match(r"my_fa 0\.1\.0: CONFORMS spec 1\.0 full \| .* \| suite kill rate not measured", said[-1]), said
    assert sorted(path.name for path in report.iterdir()) == ["junit.xml", "report.html", "report.json", "report.md"]
    assert "my_fa" in machine.run(machine.program, "conformance", "certificates", "my_fa")

    assert machine.call() == ("my_fa", [])
    for source in ("adapter.py", "backend.toml"):
        path = machine.site / "my_fa" / source
        before = path.read_bytes()
        path.write_bytes(before + b"\n")
        assert machine.call()[1] == ["not_certified"], source
        assert "the sources have changed" in machine.run(
            machine.program, "conformance", "certificates", "my_fa", code=1
        )
        path.write_bytes(before)
    assert machine.call() == ("my_fa", [])
