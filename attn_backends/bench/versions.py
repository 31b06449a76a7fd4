"""What figures depend on: package versions, the driver, the clocks of the device. Read only; nothing is set."""

from __future__ import annotations

import platform
import subprocess
from typing import Any

import torch

from attn_backends import __version__
from attn_backends.registry.environment import installed_version
from attn_backends.registry.registry import Snapshot

QUERY = ("clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "power.limit", "temperature.gpu")
SECONDS = 10
Json = dict[str, Any]


def versions(snapshot: Snapshot) -> dict[str, str]:
    """Of Python, this package, torch, triton, CUDA, the driver, and what installed backends require."""
    packages = {requirement.name for manifest in snapshot.manifests for requirement in manifest.requires}
    found = {name: installed_version(name) for name in sorted({*packages, "torch", "triton"})}
    cuda, driver = torch.version.cuda, _asked("driver_version")
    named = {"python": platform.python_version(), "attn-backends": __version__, "cuda": cuda, "driver": driver, **found}
    return {name: version for name, version in named.items() if version}


def device_name(device: torch.device) -> str:
    """As the driver reports it: `NVIDIA H200`; a CPU's architecture."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()


def clocks(device: torch.device) -> Json | None:
    """Clocks, power and temperature as `nvidia-smi` reports them; None where it cannot be asked."""
    if device.type != "cuda":
        return None
    answer = _asked(",".join(QUERY), device)
    if answer is None:
        return None
    values = [value.strip() for value in answer.split(",")]
    return dict(zip(QUERY, values, strict=True)) if len(values) == len(QUERY) else None


def _asked(fields: str, device: torch.device | None = None) -> str | None:
    """The answer of nvidia-smi about one GPU, or the first one; by its own name, for torch may number others."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    if device is not None:
        command.append("--id=GPU-" + str(torch.cuda.get_device_properties(device).uuid).removeprefix("GPU-"))
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return next((line.strip() for line in answer.stdout.splitlines() if line.strip()), None)
