"""The device that a benchmark runs on, by the name that a user types."""

from __future__ import annotations

import torch

from attn_backends.errors import RequestError


def target(name: str | None) -> torch.device:
    """`cuda`, `cuda:1`, `cpu`; None is the GPU where there is one. Raises RequestError for what is not here."""
    if name is None:
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise RequestError(
            "device", name, "cpu, cuda or cuda:1", hint="a benchmark runs here, not on a pretended device"
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RequestError("device", name, "cpu", hint="torch finds no GPU here")
    if device.type not in ("cpu", "cuda"):
        raise RequestError("device", name, "cpu, cuda or cuda:1")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        return torch.device("cuda", torch.cuda.current_device())
    return device
