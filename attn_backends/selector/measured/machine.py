"""What a measured time is for: a device under its driver with torch and triton, and one backend in exactly these sources."""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attn_backends.device import Device
from attn_backends.registry.certificates import SOURCES
from attn_backends.registry.environment import installed_version

if TYPE_CHECKING:
    from attn_backends.registry.manifest import Manifest

ABSENT = "-"
MANIFEST = "backend.toml"
# Keys of a manifest that predictions and ranking go by, and no kernel: a new fit of the cost model voids no time.
RANKING = ("priority", "efficiency", "start_us", "algorithm", "tiles")
_VERSION_FILES = (Path("/sys/module/nvidia/version"), Path("/sys/module/amdgpu/version"))
_NVIDIA_TEXT = Path("/proc/driver/nvidia/version")
_NVML = "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The software under a measurement. Times of another one never count."""

    driver: str
    torch: str
    triton: str

    @classmethod
    def here(cls) -> Machine:
        """This process's own, from files and metadata."""
        versions = {name: installed_version(name) or ABSENT for name in ("torch", "triton")}
        return cls(driver=driver_version() or ABSENT, **versions)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendKey:
    """One backend, by everything that its speed may hang on."""

    name: str
    version: str
    sources: str

    @classmethod
    def of(cls, manifest: Manifest) -> BackendKey:
        """The digest covers kernel sources, and of the manifest what is not said for ranking alone."""
        said = {key: value for key, value in manifest.raw.items() if key not in RANKING}
        digest = hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode())
        for path, content in _sources(manifest.folder):
            digest.update(f"{path}\0{hashlib.sha256(content).hexdigest()}\n".encode())
        return cls(name=manifest.name, version=manifest.version, sources=digest.hexdigest()[:32])


def _sources(folder: Path | None) -> list[tuple[str, bytes]]:
    """(path within a backend's folder, content) of every kernel source but the manifest, by path."""
    if folder is None:
        return []
    paths = (path for path in folder.rglob("*") if path.suffix in SOURCES and path.is_file())
    found = {path.relative_to(folder).as_posix(): path for path in paths}
    return [(name, path.read_bytes()) for name, path in sorted(found.items()) if name != MANIFEST]


def device_key(device: Device) -> str | None:
    """The chip as times know it: a slice of one has fewer multiprocessors. None for a device that is not here."""
    if device.pretended:
        return None
    parts = (device.kind, device.name, device.arch, device.num_sms)
    return "/".join(str(part) for part in parts)


def driver_version() -> str | None:
    """Of the GPU driver: from the kernel's files, else from NVML, which makes no CUDA context. None without one."""
    for path in _VERSION_FILES:
        if (text := _read(path)) is not None:
            return text.strip()
    found = re.search(r"\d+\.\d+(\.\d+)*", _read(_NVIDIA_TEXT) or "")
    return found.group() if found else _asked_of_nvml()


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def _asked_of_nvml() -> str | None:
    try:
        library = ctypes.CDLL(_NVML)
        answer = ctypes.create_string_buffer(96)
        if library.nvmlInit_v2() != 0:
            return None
        try:
            status = library.nvmlSystemGetDriverVersion(answer, ctypes.c_uint(len(answer)))
        finally:
            library.nvmlShutdown()
    except (OSError, AttributeError):
        return None
    return answer.value.decode("ascii", "replace") if status == 0 else None
