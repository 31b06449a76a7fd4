"""Rows whose capped scores lie anywhere between -cap and +cap, where triton_tiled knows no row's maximum.

    TRITON_INTERPRET=1 python -m tests.backends.triton_tiled_capped      prints JSON: case -> errors, and what NaN does (float32, CPU)

Each call has rows of every level of `LEVELS`, beside rows that see the highest and the lowest score at once. Errors are
by row: of the output relative to that row's own largest number, so that no row hides behind another.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from attn_backends.backends.eager import adapter as eager
from attn_backends.backends.triton_tiled import adapter as tiled
from attn_backends.block_mask import BlockMask
from attn_backends.call import Call

FAR = 3e38  # twice it is infinite in float32: scores of exactly -cap and +cap
LEVELS = (-FAR, -1e6, -4.0, -2.5, -1.0, 0.0, 1.0, 2.5, 4.0, 1e6, FAR)  # scores before the cap, in caps
LEAST = 1e-30  # of V: below it a row, beside a sink, counts as 0
CAPS: dict[str, float | None] = {"cap of 50": 50.0, "cap of 1": 1.0, "no cap": None}
SPREAD = 0.4  # of a row's scores around its level, in caps


@dataclass(frozen=True, slots=True, kw_only=True)
class Capped:
    """Sq, Sk; the softcap; what V is multiplied with; `hidden`: which keys no row sees, NaN in K and V."""

    shape: tuple[int, int] = (36, 48)
    cap: float = 50.0
    values: float = 1.0
    hidden: slice | None = None
    extras: Callable[[], dict[str, Any]] = field(default=dict)
    settings: dict[str, Any] = field(default_factory=dict)


def _ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def _without(queries: int, keys: int, hidden: slice) -> torch.Tensor:
    """A bool mask [Sq, Sk] that hides some keys from all rows, and from every third row all keys."""
    mask = torch.ones(queries, keys, dtype=torch.bool)
    mask[:, hidden] = False
    mask[::3] = False
    return mask


CASES: dict[str, Capped] = {
    "cap of 50": Capped(),
    "cap of 42": Capped(cap=42.0),
    "cap of 33": Capped(cap=33.0),
    "cap of 30": Capped(cap=30.0),
    "cap of 1": Capped(cap=1.0),
    "cap of 1e-4": Capped(cap=1e-4),
    "cap of 51, not bounded": Capped(cap=51.0),
    "small values": Capped(values=1e-6),
    "large values": Capped(values=1e20),
    "huge values below a cap of 30": Capped(cap=30.0, values=1e36),
    "one key": Capped(shape=(36, 1)),
    "no whole tile": Capped(shape=(36, 5)),
    "many whole tiles": Capped(shape=(36, 256)),
    "rows without keys": Capped(shape=(60, 33), settings={"causal": True}),
    "window": Capped(settings={"window_left": 3, "causal": True, "causal_alignment": "top_left"}),
    "negative scale": Capped(settings={"softmax_scale": -1.0}),
    "bool mask": Capped(extras=lambda: {"attn_mask": _without(36, 48, slice(7, 9))}, hidden=slice(7, 9)),
    "block mask": Capped(
        extras=lambda: {"block_mask": BlockMask(torch.tensor([[[[0, 1], [0, 0], [1, 0]]]]).bool(), (12, 24))}
    ),
    "keys behind the length": Capped(extras=lambda: {"seq_lens": _ints(29)}, hidden=slice(29, 48)),
    "no keys at all": Capped(extras=lambda: {"seq_lens": _ints(0)}, hidden=slice(0, 48)),
    "sink below every score": Capped(extras=lambda: {"sinks": torch.tensor([-80.0])}),
    "sink at the lowest score": Capped(extras=lambda: {"sinks": torch.tensor([-50.0])}),
    "sink of zero": Capped(extras=lambda: {"sinks": torch.tensor([0.0])}),
    "sink above every score": Capped(extras=lambda: {"sinks": torch.tensor([55.0])}),
    "sink of -inf": Capped(extras=lambda: {"sinks": torch.tensor([-float("inf")])}),
    "sinks of rows without keys": Capped(
        shape=(60, 33), extras=lambda: {"sinks": torch.tensor([-200.0])}, settings={"causal": True}
    ),
    "dropout": Capped(settings={"dropout_p": 0.3, "dropout_seed": 11}),
    "float mask, not bounded": Capped(extras=lambda: {"attn_mask": torch.linspace(-300.0, 300.0, 48)[None].clone()}),
    "alibi, not bounded": Capped(extras=lambda: {"alibi_slopes": torch.tensor([9.0]), "seq_lens": _ints(4)}),
}


def errors(case: Capped, dtype: torch.dtype, device: str) -> dict[str, float]:
    """Largest of a row's output relative to its own largest number, of its LSE, and how many LSEs are wrongly infinite.

    poison: how many numbers of the output change where hidden keys and values are NaN.
    """
    q, k, v, settings = drawn(case, dtype, device)
    out, lse = _attend(tiled, q, k, v, settings)
    right, right_lse = _attend(eager, q.double(), k.double(), v.double(), settings)
    finite = torch.isfinite(right_lse)
    size = right.abs().amax(-1, keepdim=True).clamp(min=case.values * LEAST)
    error = (out - right).abs() / size
    found = {
        "out": float(error.nan_to_num(nan=float("inf")).max()),
        "lse": float((lse - right_lse)[finite].abs().nan_to_num(nan=float("inf")).max()) if finite.any() else 0.0,
        "infinite": float((torch.isfinite(lse) != finite).sum()),
        "poison": 0.0,
    }
    if case.hidden is not None:
        k, v = k.clone(), v.clone()
        k[:, case.hidden] = v[:, case.hidden] = float("nan")
        poisoned, _lse = _attend(tiled, q, k, v, settings)
        found["poison"] = float((poisoned != out).sum())
    return found


def drawn(case: Capped, dtype: torch.dtype, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Any]:
    """q, k, v [1, S, 1, 16] whose product is a row's level plus what its own factor makes of a number of the key."""
    generator = torch.Generator().manual_seed(3)
    queries, keys = case.shape
    q, k = torch.zeros(1, queries, 1, 16), torch.zeros(1, keys, 1, 16)
    for row in range(queries):
        level, spread = (*((level, SPREAD) for level in LEVELS), (0.0, 1e6))[row % (len(LEVELS) + 1)]
        q[0, row, 0, 0] = level if abs(level) == FAR else level * case.cap / 2
        q[0, row, 0, 1] = spread * case.cap
    k[0, :, 0, 0] = 2.0
    k[0, :, 0, 1] = torch.rand(keys, generator=generator) * 2.0 - 1.0
    v = torch.randn(1, keys, 1, 16, generator=generator) * case.values
    settings = {"softmax_scale": 1.0, "softcap": case.cap, **case.settings, **case.extras()}
    settings = {name: _moved(value, device) for name, value in settings.items()}
    return *(tensor.to(device=device, dtype=dtype) for tensor in (q, k, v)), settings


def _moved(value: Any, device: str) -> Any:
    """A field of a call on the device: tensors, and those that a block mask holds."""
    if isinstance(value, BlockMask):
        return BlockMask(value.blocks.to(device), value.block_size, _moved(value.mask, device))
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _attend(
    module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, settings: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, LSE in float32); room for both is NaN before."""
    lse = torch.full((1, 1, q.shape[1]), float("nan"), device=q.device)
    call = Call(q=q, k=k, v=v, out=torch.full_like(q, float("nan")), lse=lse, **settings)
    module.run(call)
    return call.out, lse


def numbers_in_spite_of_nan(cap: float | None, dtype: torch.dtype, device: str) -> int:
    """How many numbers of out and LSE are none where a key that every row sees is NaN, over eight neighbouring keys."""
    draw = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(1, count, 1, 16, generator=draw).to(device=device, dtype=dtype) for count in (36, 256, 256))
    numbers = 0
    for key in range(64, 72):
        poisoned = k.clone()
        poisoned[:, key] = float("nan")
        out, lse = _attend(tiled, q, poisoned, v, {"softmax_scale": 1.0, "softcap": cap})
        numbers += int((~torch.isnan(out)).sum()) + int((~torch.isnan(lse)).sum())
    return numbers


def main() -> None:
    """Print every case's errors on this machine's CPU."""
    found: dict[str, Any] = {name: errors(case, torch.float32, "cpu") for name, case in CASES.items()}
    found["nan"] = {name: numbers_in_spite_of_nan(cap, torch.float32, "cpu") for name, cap in CAPS.items()}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
