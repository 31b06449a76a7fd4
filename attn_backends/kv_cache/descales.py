"""The descales of a cache's layers: given by the caller, or room for those that are computed as tokens are written."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attn_backends.errors import RequestError
from attn_backends.quantization import RANGES

BY_TOKEN = "per_token_head"  # noqa: S105  # a granularity
Descale = torch.Tensor | float | None


def layer_descales(
    name: str,
    given: Descale | Sequence[Descale],
    *,
    granularity: str | None,
    dtype: torch.dtype,
    cells: tuple[int, ...],
    layers: int,
    device: torch.device,
) -> list[Descale]:
    """One per layer, None for a dense tensor.

    name: "k" or "v", for errors
    given: one for all layers, or a list of one each; None under `per_token_head`, where they are made here
    cells: what a descale by token has: [pages, page_size, Hkv] or [pages, Hkv, page_size]

    Raises RequestError for a quantised tensor without descale, a dense one with, a list of another length.
    """
    field = f"{name}_descale"
    quantised = str(dtype).removeprefix("torch.") in RANGES
    if quantised and granularity == BY_TOKEN and given is None:
        return [torch.ones(cells, dtype=torch.float32, device=device) for _ in range(layers)]
    chosen: list[Descale] = list(given) if isinstance(given, list | tuple) else [given] * layers  # type: ignore[list-item]
    if len(chosen) != layers:
        raise RequestError(field, f"{len(chosen)} descales", f"{layers}, one per layer")
    if not quantised and any(descale is not None for descale in chosen):
        raise RequestError(field, "given", f"none, since {name} is stored as {dtype}")
    if quantised and any(descale is None for descale in chosen):
        wanted = f"a descale for every layer, or {name}_granularity={BY_TOKEN!r}, since {name} is stored as {dtype}"
        raise RequestError(field, None, wanted)
    return chosen
