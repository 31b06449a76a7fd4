"""What `doctor` looks at. Every look is one small function that yields findings; none raises for what it finds."""

from __future__ import annotations

import datetime as dt
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from attn_backends.cli.finding import Finding
from attn_backends.cli.install_hint import install_hint
from attn_backends.cli.knob_findings import illegal_knobs, knobs
from attn_backends.cli.load_check import LoadResult, load_all
from attn_backends.cli.reach import reach
from attn_backends.cli.standing import BROKEN, READY, Standing, standings
from attn_backends.device import Device
from attn_backends.errors import AttnBackendsError
from attn_backends.registry.environment import ALWAYS_RECORDED, installed_version
from attn_backends.registry.registry import default_registry

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

NOT_INSTALLED = "not installed"  # as the selector's reason has it


def examine(*, load: bool) -> list[Finding]:
    """Everything, area by area; with an illegal knob, all that can be looked at all the same."""
    device = Device.current()
    if illegal := illegal_knobs():
        return [*_installed(()), *_device(device), *knobs(()), *illegal]
    found = standings()
    return [
        *_installed(found), *_device(device), *_backends(found, device, load=load), *_certificates(), *_quarantine(),
        *knobs([one.name for one in found]), *_log(),
    ]  # fmt: skip


def _installed(found: tuple[Standing, ...]) -> Iterator[Finding]:
    area = "installed"
    yield Finding(area=area, subject="python", level="ok", text=f"{platform.python_version()} on {sys.platform}")
    asked = _asked(found)
    for package in dict.fromkeys((*ALWAYS_RECORDED, *sorted(asked))):
        version = installed_version(package)
        by = f"; asked for by {_counted(len(asked[package]))}" if package in asked else ""
        if version is not None:
            yield Finding(area=area, subject=package, level="ok", text=f"{version}{by}")
        else:
            level = "warn" if package == "torch" else "note"
            hint = install_hint(package, asked.get(package, ()))
            yield Finding(area=area, subject=package, level=level, text=f"not installed{by}", hint=hint)


def _asked(found: tuple[Standing, ...]) -> dict[str, list[SpecifierSet]]:
    """What manifests say of each package that they need on this Python."""
    asked: dict[str, list[SpecifierSet]] = {}
    for one in found:
        for requirement in one.manifest.requires if one.manifest else ():
            if requirement.applies:
                asked.setdefault(requirement.name, []).append(requirement.specifier)
    return asked


def _counted(count: int) -> str:
    return f"{count} backends" if count != 1 else "1 backend"


def _device(device: Device) -> Iterator[Finding]:
    facts = []
    if device.num_sms:
        facts.append(f"{device.num_sms} {'cores' if device.kind == 'cpu' else 'multiprocessors'}")
    if device.memory_bytes:
        facts.append(f"{device.memory_bytes / 2**30:.0f} GiB")
    if device.memory_bandwidth:
        facts.append(f"{device.memory_bandwidth / 1e12:.2f} TB/s")
    yield Finding(area="device", subject=device.name, level="ok", text=", ".join([device.describe(), *facts]))
    if device.kind == "cpu":
        text = "no GPU was found; backends for one can still be asked about with --device"
        yield Finding(area="device", subject="gpu", level="note", text=text)


def _backends(found: tuple[Standing, ...], device: Device, *, load: bool) -> Iterator[Finding]:
    ready = [one.name for one in found if one.status == READY]
    loaded = {result.name: result for result in (load_all(ready) if load else ())}
    for one in found:
        yield _backend(one, device, loaded.get(one.name))
    if not ready:
        hint = install_hint("torch", _asked(found).get("torch", ()))
        yield Finding(area="backends", subject="-", level="bad", text="no backend is ready", hint=hint)


def _backend(one: Standing, device: Device, loaded: LoadResult | None) -> Finding:
    if one.status == BROKEN:
        return _of(one, "bad", one.why, "fix the manifest, or uninstall the package that brings it")
    if absent := _absent(one):
        return _of(one, "warn", f"{one.word}: {', '.join(absent)}")  # how to install it stands with the package
    if one.status != READY:
        hints = "; ".join(reason.hint for reason in one.reasons if reason.hint)
        text = f"{one.word}: " + "; ".join(reason.message for reason in one.reasons)
        return _of(one, "bad" if one.status == "load_error" else "warn", text, hints)
    kinds = reach(one.manifest) if one.manifest else {}
    here = device.kind in kinds or "any" in kinds
    if loaded is not None and loaded.error is not None:
        return _of(
            one, "bad" if here else "warn", f"does not load: {loaded.error}", "reinstall the package that it names"
        )
    done = "" if loaded is None or loaded.seconds is None else f", loads ({loaded.seconds:.1f} s)"
    if not here:
        return _of(one, "note", f"ready{done}; for {', '.join(kinds)}, this machine has {device.kind}")
    return _of(one, "ok", f"ready{done}")


def _absent(one: Standing) -> list[str]:
    """The packages that are not installed, if that is all that keeps the backend from being ready."""
    if one.status != "requirement" or any(reason.got != NOT_INSTALLED for reason in one.reasons):
        return []
    return [reason.axis for reason in one.reasons]


def _of(one: Standing, level: str, text: str, hint: str = "") -> Finding:
    return Finding(area="backends", subject=one.name, level=level, text=text, hint=hint)


def _certificates() -> Iterator[Finding]:
    from attn_backends.registry.certificates import certified_architectures, read_certificates

    manifests = {manifest.name: manifest for manifest in default_registry().snapshot().manifests}
    for certificate in sorted(read_certificates()):
        name, version, _, arch = certificate
        valid = name in manifests and bool(certified_architectures(manifests[name], (certificate,)))
        text = f"certificate for version {version} on {arch}" + (
            "" if valid else ", not of the sources that are installed"
        )
        hint = "" if valid else f"attn-backends conformance run {name} --certify"
        yield Finding(area="certificates", subject=name, level="ok" if valid else "warn", text=text, hint=hint)


def _quarantine() -> Iterator[Finding]:
    from attn_backends.selector.quarantine import entries_for

    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    try:
        entries = entries_for(default_registry().snapshot().manifests)
    except AttnBackendsError as error:
        yield Finding(area="known-bad cases", subject="-", level="bad", text=str(error), hint="fix the file")
        return
    overdue = [entry for entry in entries if entry.expires < today]
    text = f"{len(entries)} entries, {len(overdue)} overdue"
    yield Finding(area="known-bad cases", subject="entries", level="ok", text=text)
    for entry in overdue:
        text = f"was to be looked at again by {entry.expires}; it still applies ({entry.evidence})"
        yield Finding(area="known-bad cases", subject=entry.id, level="warn", text=text, hint="upgrade attn-backends")


def _log() -> Iterator[Finding]:
    from attn_backends.registry.knobs import PREFIX, current_knobs
    from attn_backends.selector.announce import log_folder

    setting = current_knobs().log
    if setting is None:
        text = "off"
        yield Finding(
            area="decision log", subject="log", level="note", text=text, hint=f"{PREFIX}LOG=FOLDER switches it on"
        )
    elif _writable(log_folder(setting)):
        yield Finding(area="decision log", subject="log", level="ok", text=f"written to {log_folder(setting)}")
    else:
        text = f"{log_folder(setting)} cannot be written; calls work, nothing is logged"
        yield Finding(area="decision log", subject="log", level="bad", text=text, hint="choose another folder")


def _writable(folder: Path) -> bool:
    """Whether a file can be made in the folder, or in the nearest one above it that is there; nothing is left behind."""
    nearest = next((one for one in (folder, *folder.absolute().parents) if one.exists()), folder)
    try:
        with tempfile.TemporaryFile(dir=nearest):
            return True
    except OSError:
        return False
