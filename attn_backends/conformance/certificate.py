"""Certificates: what a run must have been to earn one, and the file that the registry reads.

A certificate is for the exact bytes of a manifest and the sources beside it. It is given for a whole run of `full` or
`deep` with nothing bad, nothing left out but what needs other devices, no gaps, and a suite that proved its own strength.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attn_backends.conformance.outcome import Outcome, Result
from attn_backends.conformance.record import RunRecord
from attn_backends.conformance.report.headline import device_arch, device_name, elsewhere, headline
from attn_backends.conformance.report.json_report import render_json
from attn_backends.conformance.report.verdict import failing, warnings
from attn_backends.conformance.report.writing import write_whole
from attn_backends.errors import AttnBackendsError
from attn_backends.registry.certificates import default_folder, source_digest
from attn_backends.registry.manifest import Manifest

SCHEMA = "attn.certificate/1"
LEVELS = ("full", "deep")
PACKAGES = ("attn-backends", "torch", "triton", "numba-cuda")
_NAMED = 3  # items that an obstacle names


class CertificationError(AttnBackendsError):
    """A run that earns no certificate; `obstacles` has everything that is in the way."""

    def __init__(self, backend: str, obstacles: list[str]) -> None:
        self.obstacles = obstacles
        listed = "".join(f"\n  - {obstacle}" for obstacle in obstacles)
        super().__init__(f"no certificate for {backend}; in the way:{listed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """One certificate on this machine. `data` is None for a file that cannot be read, and `problem` says why."""

    path: Path
    data: dict[str, Any] | None
    problem: str = ""

    def standing(self, manifests: dict[str, Manifest]) -> str:
        """valid; or why it counts for nothing."""
        if self.data is None:
            return f"unreadable: {self.problem}"
        manifest = manifests.get(str(self.data["backend"]))
        if manifest is None:
            return "the backend is not installed"
        if manifest.version != self.data["version"]:
            return f"version {manifest.version} is installed"
        return "valid" if source_digest(manifest) == self.data["digest"] else "the sources have changed"


def certify(record: RunRecord, manifest: Manifest, folder: Path | None = None, *, unmeasured: bool = False) -> Path:
    """Write the certificate that a run earned, and return its file.

    `unmeasured` accepts a run without a self-test of the suite, which the certificate then says. Raises
    CertificationError, listing everything that is in the way.
    """
    found = obstacles(record, manifest, unmeasured=unmeasured)
    if found:
        raise CertificationError(record.backend, found)
    place = default_folder() if folder is None else folder
    place.mkdir(parents=True, exist_ok=True)
    text = json.dumps(certificate_json(record), indent=2) + "\n"
    return write_whole(place / _file_name(record), text)


def obstacles(record: RunRecord, manifest: Manifest, *, unmeasured: bool = False) -> list[str]:
    """Everything that keeps a run from earning a certificate; empty if it does."""
    checks: tuple[Callable[[], Iterator[str]], ...] = (
        lambda: _wrong_backend(record, manifest), lambda: _incomplete(record), lambda: _outcomes(record),
        lambda: _not_run(record), lambda: _strength(record, unmeasured=unmeasured),
    )  # fmt: skip
    return [text for check in checks for text in check()]


def certificate_json(record: RunRecord) -> dict[str, Any]:
    """What the file says."""
    return {
        "schema": SCHEMA, "backend": record.backend, "version": record.version, "digest": record.digest,
        "spec": record.spec, "suite": record.suite, "level": record.level, "device": device_name(record),
        "arch": device_arch(record), "packages": _packages(), "self_test": record.self_test,
        "created": datetime.now(UTC).isoformat(timespec="seconds"), "headline": headline(record),
        "report": hashlib.sha256(render_json(record).encode("utf-8", "backslashreplace")).hexdigest(),
    }  # fmt: skip


def certificates(folder: Path | None = None) -> list[Certificate]:
    """Every certificate file of a folder (default: this user's), readable or not."""
    place = default_folder() if folder is None else folder
    return [_read(path) for path in sorted(place.glob("*.json"))] if place.is_dir() else []


def remove_certificates(backend: str, folder: Path | None = None) -> list[Path]:
    """Delete every certificate of a backend; returns what was deleted."""
    doomed = [one.path for one in certificates(folder) if one.data is not None and one.data["backend"] == backend]
    for path in doomed:
        path.unlink(missing_ok=True)
    return doomed


def _read(path: Path) -> Certificate:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        missing = [name for name in ("backend", "version", "digest", "arch") if not isinstance(data[name], str)]
    except (OSError, ValueError) as error:
        return Certificate(path=path, data=None, problem=str(error))
    except (KeyError, TypeError) as error:
        return Certificate(path=path, data=None, problem=f"no {error}")
    return Certificate(path=path, data=None if missing else data, problem=", ".join(missing))


def _file_name(record: RunRecord) -> str:
    """One file per backend, version and architecture; a later run replaces an earlier one."""
    return re.sub(r"[^\w.+-]", "_", f"{record.backend}-{record.version}-{device_arch(record)}.json")


def _packages() -> dict[str, str]:
    """Versions of what the numbers came from."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _wrong_backend(record: RunRecord, manifest: Manifest) -> Iterator[str]:
    if (record.backend, record.version) != (manifest.name, manifest.version):
        yield f"the run was of {record.backend} {record.version}, installed is {manifest.name} {manifest.version}"
    elif record.digest != source_digest(manifest):
        yield "the manifest or a kernel source has changed since the run"


def _incomplete(record: RunRecord) -> Iterator[str]:
    if record.level not in LEVELS:
        yield f"level {record.level}; a certificate needs {' or '.join(LEVELS)}"
    if record.only is not None:
        yield f"a partial run (only {record.only})"
    if not record.counts()[Outcome.PASS]:
        yield "nothing passed"
    yield from record.errors
    if record.gaps:
        yield f"{len(record.gaps)} known gaps: " + _some([str(gap.get("id", "?")) for gap in record.gaps])


def _outcomes(record: RunRecord) -> Iterator[str]:
    for outcome in Outcome:
        found = [one for one in (*failing(record), *warnings(record)) if one.outcome is outcome]
        if found:
            yield f"{len(found)} {outcome}: {_some([one.id for one in found])}"


def _not_run(record: RunRecord) -> Iterator[str]:
    here = {device_arch(record), str(record.device.get("kind", "cpu"))}
    found = [one for one in record.results if one.outcome is Outcome.NOT_RUN and not _for_others(one, here)]
    if found:
        yield f"{len(found)} NOT_RUN that this device should run: {_some([one.id for one in found])}"


def _for_others(result: Result, here: set[str]) -> bool:
    places = elsewhere(result.message)
    return bool(places) and not here & set(places)


def _strength(record: RunRecord, *, unmeasured: bool) -> Iterator[str]:
    test = record.self_test
    if test is None:
        if not unmeasured:
            yield "the suite's own strength was not measured (attn-backends conformance self-test)"
    elif test["killed"] < test["mutants"] or test["controls_failed"]:
        yield (
            f"the suite is weak here: {test['killed']}/{test['mutants']} planted bugs found, "
            f"{test['controls_failed']}/{test['controls']} correct implementations failed"
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
