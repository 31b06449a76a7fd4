"""Installed packages that lie: written into a folder with their entry points, and looked at by a fresh interpreter.

The interpreter has the folder on its path, lists the backends, selects for a small request, loads what it is told to
load, and says in JSON what it saw. Nothing is installed, and nothing outlives the folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_backends.conformance.mutants.plugins.lie import NOTHING, Told, lie

_MANIFEST = """schema = 1
name = "{name}"
version = "1.0.0"
api = "{api}"
kernel = "{package}:run"

[[capability]]
device = ["cpu"]
arch = "any"
dtype = ["float32"]
kv_format = ["dense"]
layout = ["bshd"]
phase = "any"
attn_type = "any"
head_dim = "any"
head_dim_v = "any"
gqa_ratio = "any"
seq_len = "any"
causal = [false]
strides = ["any"]
index_width = [32, 64]
"""

_LOOK = """
import json, sys
import attn_backends
from attn_backends.registry.registry import default_registry
registry = default_registry()
for name in sys.argv[1:]:
    try:
        registry.load(name)
    except Exception:
        pass
snapshot = registry.snapshot()
request = attn_backends.Request(dtype="float32", seq_q=4, seq_k=4, num_q_heads=2, num_kv_heads=2, head_dim_qk=8, head_dim_v=8)
decision = attn_backends.select(request, device=attn_backends.Device(kind="cpu", name="cpu"))
print(json.dumps({
    "backend": decision.backend,
    "codes": {one.name: [reason.code for reason in one.reasons] for one in decision.candidates},
    "texts": {one.name: [reason.message for reason in one.reasons] for one in decision.candidates},
    "broken": [[item.name, item.error] for item in snapshot.broken],
    "modules": [name for name in sys.modules if name.startswith("lying_")],
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One distribution: `entry` is its entry point's name, `name` what its manifest says, `code` its module."""

    entry: str
    name: str
    code: str = "def run(call):\n    call.out.zero_()\n"
    api: str = ">=1.0,<2"

    def write(self, folder: Path, number: int) -> None:
        """Module, manifest and metadata, as an installer leaves them."""
        package = f"lying_{number}"
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text(self.code, encoding="utf-8")
        text = _MANIFEST.format(name=self.name, api=self.api, package=package)
        (folder / package / "backend.toml").write_text(text, encoding="utf-8")
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
        entry = f"[attn_backends.backends]\n{self.entry} = {package}:backend.toml\n"
        (info / "entry_points.txt").write_text(entry, encoding="utf-8")


def seen(*packages: Package, load: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a fresh interpreter sees of these packages. Raises RuntimeError with its words if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        for number, package in enumerate(packages):
            package.write(Path(folder), number)
        path = os.pathsep.join([folder, *(entry for entry in sys.path if entry)])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ATTN_BACKENDS_")}
        done = subprocess.run(  # noqa: S603  # this interpreter, on a script of ours
            [sys.executable, "-c", _LOOK, *load], env={**kept, "PYTHONPATH": path}, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the interpreter that looks at plugins failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _reason(found: dict[str, Any], name: str) -> Told:
    """The first code that a candidate was refused under; nothing if any other backend stopped working."""
    codes = found["codes"].get(name, [])
    if not codes or found["backend"] is None or found["backend"] == name:
        return NOTHING
    return Told(word=codes[0], by=name, message=found["texts"][name][0])


def _broken(found: dict[str, Any], *words: str) -> Told:
    """`manifest error`, if a broken entry says all these words and another backend still serves."""
    text = " ".join(f"{name} {error}" for name, error in found["broken"])
    fits = found["broken"] and found["backend"] is not None and all(word in text for word in words)
    return Told(word="manifest error", by=words[0], message=text) if fits else NOTHING


@lie("PLUGIN-1", "not imported")
def slow_import() -> Told:
    """A module that sleeps half a minute at import."""
    found = seen(Package(entry="lie_slow", name="lie_slow", code="import time\ntime.sleep(30)\ndef run(call): ...\n"))
    listed = "lie_slow" in found["codes"] and not found["modules"]
    return Told(word="not imported", by="lie_slow") if listed else NOTHING


@lie("PLUGIN-2", "load_error")
def crash_at_import() -> Told:
    """A module that raises at import."""
    bad = Package(entry="lie_crash", name="lie_crash", code="raise RuntimeError('no driver')\n")
    return _reason(seen(bad, load=("lie_crash",)), "lie_crash")


@lie("PLUGIN-2", "load_error")
def exit_at_import() -> Told:
    """A module that leaves the process at import."""
    bad = Package(entry="lie_exit", name="lie_exit", code="raise SystemExit(3)\n")
    return _reason(seen(bad, load=("lie_exit",)), "lie_exit")


@lie("PLUGIN-3", "api_version")
def api_of_tomorrow() -> Told:
    """A manifest for an api that this host is not."""
    return _reason(seen(Package(entry="lie_api", name="lie_api", api=">=9")), "lie_api")


@lie("PLUGIN-4", "manifest error")
def name_of_another() -> Told:
    """Two distributions that call themselves alike."""
    return _broken(
        seen(*(Package(entry="lie_twin", name="lie_twin") for _ in range(2))), "lie_twin", "lying_0", "lying_1"
    )


@lie("PLUGIN-5", "manifest error")
def name_other_than_the_entry_point() -> Told:
    """A manifest that says another name than its entry point."""
    return _broken(seen(Package(entry="lie_entry", name="lie_manifest")), "lie_entry", "lie_manifest")


@lie("PLUGIN-6", "not_certified")
def certified_by_its_own_word() -> Told:
    """A package without any certificate that asks to be chosen."""
    return _reason(seen(Package(entry="lie_uncertified", name="lie_uncertified")), "lie_uncertified")


LIES = (
    slow_import, crash_at_import, exit_at_import, api_of_tomorrow, name_of_another, name_other_than_the_entry_point,
    certified_by_its_own_word,
)  # fmt: skip
