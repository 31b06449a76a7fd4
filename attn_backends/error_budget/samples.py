"""Tensors to estimate with, where a caller has none at hand: drawn, or read from a file."""

from __future__ import annotations

from pathlib import Path

import torch

from attn_backends.errors import RequestError

Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
OUTLIERS = 0.001  # of all numbers
OUTLIER_DEVIATION = 10.0


def check_device(name: str) -> None:
    """Raise RequestError unless this machine's torch computes there."""
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch was built without CUDA
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RequestError("device", name, "cpu, or a device of this machine", hint=reason) from error


def drawn(
    *, batch: int, seq: int, heads: int, kv_heads: int, head_dim: int, outliers: float, seed: int, device: str = "cpu"
) -> Triple:
    """q, k, v [B, S, H, D] in bfloat16: N(0, 1), and N(0, 100) besides in a share `outliers` of the numbers.

    With 0.001 the data on which FlashAttention-3 reports its error (arXiv:2407.08608, section 4.3).
    """
    generator = torch.Generator().manual_seed(seed)

    def tensor(count: int) -> torch.Tensor:
        shape = (batch, seq, count, head_dim)
        values = torch.randn(shape, generator=generator)
        far = torch.rand(shape, generator=generator) < outliers
        values += far * OUTLIER_DEVIATION * torch.randn(shape, generator=generator)
        return values.to(device, torch.bfloat16)

    return tensor(heads), tensor(kv_heads), tensor(kv_heads)


def loaded(path: Path, device: str = "cpu") -> Triple:
    """q, k and v out of a file of `torch.save`: a dict with these keys, or three tensors in order.

    Only tensors are read, no code. Raises RequestError where the file holds something else.
    """
    try:
        found = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # of many kinds: no such format, torn, code inside
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RequestError("file", path.name, "a file of torch.save with q, k and v", hint=reason) from error
    if isinstance(found, dict):
        missing = [name for name in "qkv" if name not in found]
        if missing:
            raise RequestError("file", f"keys {', '.join(map(str, found))}", "the keys q, k and v")
        found = [found[name] for name in "qkv"]
    if not isinstance(found, (list, tuple)) or len(found) != 3 or not all(isinstance(t, torch.Tensor) for t in found):
        raise RequestError("file", type(found).__name__, "a dict with q, k and v, or three tensors")
    return found[0], found[1], found[2]
