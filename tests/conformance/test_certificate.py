"""Certificates: what earns one, what is in the way, and that one changed byte takes it away."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attn_backends.conformance.certificate import CertificationError, certificates, certify, remove_certificates
from attn_backends.conformance.report.headline import device_arch
from attn_backends.registry.certificates import certificate_of, read_certificates, source_digest
from attn_backends.registry.manifest import read_manifest_file
from tests.conformance.records import H200, PLAIN, STRONG, record, result
from tests.plugins.install import HERE, install_into

MANIFEST = read_manifest_file(
    HERE / "good_fa" / "good_fa_pkg" / "backend.toml", label="good_fa_pkg/backend.toml", origin="third_party"
)
OTHER = PLAIN.replace(seed=1)


def proved(*results, manifest=MANIFEST, **more):
    """A run of good_fa that earns a certificate, unless told otherwise."""
    return record(*results, **{"backend": manifest.name, "version": manifest.version, "digest": source_digest(manifest), **more})  # fmt: skip


@pytest.mark.parametrize(
    "made",
    [proved(), proved(level="deep"), proved(result(), result("REFUSED", OTHER)), proved(notes=("a remark",)),
     proved(result(), result("NOT_RUN", OTHER, message="needs cuda (sm_90)")),
     proved(result(), result("NOT_RUN", OTHER, message="needs sm_80 or sm_100"), device=H200),
     proved(result(), result("NOT_RUN", OTHER, message="needs cpu"), device=H200)],
    ids=["full", "deep", "refused", "remark", "cuda not run on a cpu", "sm_100 not run on sm_90", "cpu not run on a gpu"],
)  # fmt: skip
def test_a_good_run_earns_one(made, tmp_path):
    """The registry reads exactly what was certified, and the file says the rest."""
    path = certify(made, MANIFEST, tmp_path / "new" / "folder")
    arch = device_arch(made)
    assert read_certificates(path.parent) == {certificate_of(MANIFEST, arch)}
    said = json.loads(path.read_text())
    assert (said["spec"], said["level"], said["self_test"]) == (made.spec, made.level, STRONG)
    assert (said["arch"], path.name) == (arch, f"good_fa-0.1.0-{arch}.json")
    assert said["packages"]["attn-backends"]
    assert len(said["report"]) == 64


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (proved(level="quick"), "level quick; a certificate needs full or deep"),
        (proved(only="oracle/*"), "a partial run (only oracle/*)"),
        (proved(result("REFUSED")), "nothing passed"),
        *((proved(result(), result(outcome, OTHER)), f"1 {outcome}: value/{OTHER.id}")
          for outcome in ("SILENT_WRONG", "CRASH", "TIMEOUT", "FAIL", "OVERCLAIM", "UNDERCLAIM")),
        (proved(gaps=({"id": "odd-width"},)), "1 known gaps: odd-width"),
        (proved(notes=("error: sinks is declared and no case ran",)), "sinks is declared and no case ran"),
        (proved(result(), result("NOT_RUN", OTHER, message="out of time")), "1 NOT_RUN that this device should run"),
        (proved(result(), result("NOT_RUN", OTHER, message="needs cuda"), device=H200), "1 NOT_RUN that this device should run"),
        (proved(result(), result("NOT_RUN", OTHER, message="needs sm_80 or sm_90"), device=H200), "1 NOT_RUN that this device should run"),
        (proved(result(), result("NOT_RUN", OTHER, message="needs cpu")), "1 NOT_RUN that this device should run"),
        (proved(self_test=None), "the suite's own strength was not measured"),
        (proved(self_test={**STRONG, "killed": 60}), "60/61 planted bugs found"),
        (proved(self_test={**STRONG, "controls_failed": 1}), "1/8 correct implementations failed"),
        (proved(digest="0" * 64), "has changed since the run"),
        (proved(version="0.2.0"), "the run was of good_fa 0.2.0, installed is good_fa 0.1.0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_in_the_way_is_said(made, said, tmp_path):
    """No file is written, and the error has the reason."""
    with pytest.raises(CertificationError, match="no certificate for good_fa") as caught:
        certify(made, MANIFEST, tmp_path)
    assert any(said in obstacle for obstacle in caught.value.obstacles), caught.value.obstacles
    assert not list(tmp_path.iterdir())


def test_everything_in_the_way_is_listed_at_once(tmp_path):
    """Not the first reason only."""
    made = proved(result("FAIL"), level="quick", only="x", self_test=None, gaps=({"id": "a"},))
    with pytest.raises(CertificationError) as caught:
        certify(made, MANIFEST, tmp_path)
    assert len(caught.value.obstacles) == 6


def test_an_unmeasured_suite_is_recorded(tmp_path):
    """Whoever goes without the self-test says so, and the certificate does too."""
    path = certify(proved(self_test=None), MANIFEST, tmp_path, unmeasured=True)
    assert json.loads(path.read_text())["self_test"] is None


def test_a_second_run_replaces_the_first(tmp_path):
    """One file per backend, version and architecture, and nothing half-written beside it."""
    certify(proved(), MANIFEST, tmp_path)
    certify(proved(level="deep"), MANIFEST, tmp_path)
    certify(proved(device=H200), MANIFEST, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good_fa-0.1.0-cpu.json", "good_fa-0.1.0-sm_90.json"]


def test_standings(tmp_path):
    """Valid, changed, another version, not installed, unreadable: each is told apart."""
    certify(proved(), MANIFEST, tmp_path)
    (tmp_path / "torn.json").write_text("{")
    (tmp_path / "half.json").write_text('{"backend": "x"}')
    found = {one.path.name: one for one in certificates(tmp_path)}
    good = found["good_fa-0.1.0-cpu.json"]
    assert good.standing({"good_fa": MANIFEST}) == "valid"
    assert good.standing({}) == "the backend is not installed"
    newer = dataclasses.replace(MANIFEST, version="0.2.0")
    assert good.standing({"good_fa": newer}) == "version 0.2.0 is installed"
    changed = dataclasses.replace(MANIFEST, digest="0")
    assert good.standing({"good_fa": changed}) == "the sources have changed"
    assert found["torn.json"].standing({}).startswith("unreadable")
    assert found["half.json"].standing({}).startswith("unreadable")
    assert [path.name for path in remove_certificates("good_fa", tmp_path)] == ["good_fa-0.1.0-cpu.json"]
    assert remove_certificates("good_fa", tmp_path) == []


ASK = """
import sys
import attn_backends as ab
request = ab.Request(dtype="float32", seq_q=8, seq_k=8, num_q_heads=2, num_kv_heads=2, head_dim_qk=16, head_dim_v=16)
arch = {"cpu": None, "sm_90": (9, 0), "sm_80": (8, 0)}[sys.argv[1]]
decision = ab.select(request, device=ab.Device(kind="cuda" if arch else "cpu", name="it", arch=arch))
one = next(one for one in decision.candidates if one.name == "good_fa")
print(one.status, *(reason.code for reason in one.reasons))
"""


class Machine:
    """A machine with good_fa installed and a folder of certificates; every question is asked in a new process."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "site"
        self.home = folder / "data"
        install_into(self.site, ["good_fa"])
        self.package = self.site / "good_fa_pkg"
        self.manifest = read_manifest_file(
            self.package / "backend.toml", label="good_fa_pkg/backend.toml", origin="third_party"
        )
        self.certificates = self.home / "attn-backends" / "certificates"

    def standing(self, arch: str = "cpu") -> str:
        environment = {**os.environ, "PYTHONPATH": str(self.site), "XDG_DATA_HOME": str(self.home)}
        words = [sys.executable, "-c", ASK, arch]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return Machine(tmp_path_factory.mktemp("machine"))


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of the user's data is set by XDG_DATA_HOME")
def test_one_byte_decides(machine):
    """Without a certificate not_certified, with one eligible; one byte in source or manifest, and back again."""
    shutil.rmtree(machine.certificates, ignore_errors=True)
    assert machine.standing() == "rejected not_certified"
    certify(proved(manifest=machine.manifest), machine.manifest, machine.certificates)
    assert machine.standing() in ("selected", "outranked outranked")
    for name in ("__init__.py", "backend.toml"):
        path = machine.package / name
        before = path.read_bytes()
        for changed in (
            before + b"#",
            before.replace(b"smallest", b"Smallest").replace(b"priority = 50", b"priority = 51"),
        ):
            assert changed != before
            path.write_bytes(changed)
            assert machine.standing() == "rejected not_certified", name
        path.write_bytes(before)
        assert machine.standing() in ("selected", "outranked outranked")


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of the user's data is set by XDG_DATA_HOME")
def test_an_architecture_proves_nothing_of_another(machine):
    """What ran on sm_90 is eligible there, and neither on sm_80 nor on the CPU."""
    shutil.rmtree(machine.certificates, ignore_errors=True)
    certify(proved(manifest=machine.manifest, device=H200), machine.manifest, machine.certificates)
    uncertified = "rejected not_certified"
    said = {arch: machine.standing(arch) for arch in ("sm_90", "sm_80", "cpu")}
    assert (said.pop("sm_90") != uncertified, said) == (True, {"sm_80": uncertified, "cpu": uncertified})
