"""What triton_tiled is compared with eager on: a table of calls, forward and backward, and the tiles it visits.

    TRITON_INTERPRET=1 python -m tests.backends.triton_tiled_cases      prints JSON: case -> differences (float32, CPU)

Shapes are small and no multiple of a tile, for the interpreter; a GPU runs the same cases in every dtype.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from attn_backends.backends.eager import adapter as eager
from attn_backends.backends.triton_tiled import adapter as tiled
from attn_backends.backends.triton_tiled.launch import launch_forward
from attn_backends.backends.triton_tiled.operands import operands_of
from attn_backends.backends.triton_tiled.sources import sources_of
from attn_backends.block_mask import BlockMask
from attn_backends.call import Call, Grads

Extras = Callable[[torch.Generator], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """B, Sq, Sk, Hq, Hkv, D, Dv; `packed` gives cu_seqlens of q and k instead; `extras` draws further arguments.

    unseen: keys that no row sees: NaN in K and V
    """

    shape: tuple[int, int, int, int, int, int, int] = (1, 40, 40, 2, 1, 16, 16)
    packed: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    layout: str = "bshd"
    unseen: slice | None = None
    extras: Extras = field(default=lambda _: {})
    settings: dict[str, Any] = field(default_factory=dict)


def _ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def _without(queries: int, keys: int, hidden: slice) -> torch.Tensor:
    """A bool mask [Sq, Sk] that hides some keys from all rows."""
    mask = torch.ones(queries, keys, dtype=torch.bool)
    mask[:, hidden] = False
    return mask


CASES: dict[str, Case] = {
    "plain": Case(shape=(1, 33, 47, 2, 1, 16, 16)),
    "bhsd": Case(shape=(2, 33, 47, 2, 1, 16, 16), layout="bhsd", settings={"causal": True}),
    "odd widths": Case(shape=(2, 33, 47, 2, 1, 40, 24), settings={"causal": True}),
    "wide qk": Case(shape=(1, 20, 36, 1, 1, 72, 16), settings={"causal": True}),
    "more queries than keys": Case(shape=(1, 47, 33, 2, 2, 16, 16), settings={"causal": True}),
    "top left, more queries": Case(
        shape=(1, 47, 33, 2, 2, 16, 16), settings={"causal": True, "causal_alignment": "top_left"}
    ),
    "top left, more keys": Case(
        shape=(1, 33, 47, 2, 2, 16, 16), settings={"causal": True, "causal_alignment": "top_left"}
    ),
    "one query": Case(shape=(2, 1, 70, 4, 2, 16, 16), settings={"causal": True}),
    "window": Case(shape=(1, 64, 64, 1, 1, 16, 16), settings={"window_left": 10}),
    "two-sided window": Case(shape=(1, 64, 80, 1, 1, 16, 16), settings={"window_left": 10, "window_right": 5}),
    "causal window": Case(shape=(1, 64, 80, 1, 1, 16, 16), settings={"window_left": 3, "causal": True}),
    "softcap": Case(settings={"causal": True, "softcap": 2.0}),
    "tiny softcap": Case(settings={"causal": True, "softcap": 1e-4}),
    "sinks": Case(shape=(1, 40, 40, 4, 2, 16, 16), extras=lambda g: {"sinks": torch.randn(4, generator=g)}),
    "sinks of empty rows": Case(
        shape=(1, 40, 20, 4, 2, 16, 16),
        extras=lambda g: {"sinks": torch.randn(4, generator=g)},
        settings={"causal": True},
    ),
    "bool mask": Case(
        shape=(2, 40, 40, 2, 1, 16, 16), extras=lambda g: {"attn_mask": torch.rand(2, 1, 40, 40, generator=g) > 0.5}
    ),
    "float mask": Case(
        extras=lambda g: {"attn_mask": torch.randn(1, 2, 1, 40, generator=g)}, settings={"causal": True}
    ),
    "lowest float mask": Case(extras=lambda g: {"attn_mask": torch.full((40, 40), torch.finfo(torch.float32).min)}),
    "bias gradient per sequence": Case(
        shape=(2, 40, 40, 4, 2, 16, 16),
        extras=lambda g: {"attn_mask": torch.randn(2, 1, 1, 40, generator=g)},
        settings={"causal": True, "grad_bias": True},
    ),
    "bias gradient per head": Case(
        shape=(2, 40, 33, 4, 2, 16, 16),
        extras=lambda g: {"attn_mask": torch.randn(4, 40, 33, generator=g)},
        settings={"grad_bias": True, "softcap": 3.0, "dropout_p": 0.2, "dropout_seed": 5},
    ),
    "bias gradient per query": Case(
        shape=(2, 40, 33, 4, 2, 16, 16),
        extras=lambda g: {"attn_mask": torch.randn(40, 1, generator=g)},
        settings={"grad_bias": True},
    ),
    "bias gradient of one number": Case(
        shape=(2, 40, 33, 4, 2, 16, 16),
        extras=lambda g: {"attn_mask": torch.randn(1, 1, generator=g)},
        settings={"grad_bias": True},
    ),
    "lengths": Case(
        shape=(2, 40, 40, 2, 1, 16, 16), extras=lambda g: {"seq_lens": _ints(7, 40)}, settings={"causal": True}
    ),
    "a length of zero": Case(shape=(2, 40, 40, 2, 1, 16, 16), extras=lambda g: {"seq_lens": _ints(0, 40)}),
    "alibi": Case(extras=lambda g: {"alibi_slopes": torch.rand(2, generator=g)}, settings={"causal": True}),
    "alibi per sequence": Case(
        shape=(2, 40, 40, 2, 1, 16, 16), extras=lambda g: {"alibi_slopes": torch.rand(2, 2, generator=g)}
    ),
    "dropout": Case(settings={"dropout_p": 0.3, "dropout_seed": 2**40 + 17}),
    "negative scale": Case(settings={"softmax_scale": -0.3}),
    "scale of zero": Case(settings={"softmax_scale": 0.0}),
    "packed": Case(packed=((0, 5, 5, 40), (0, 7, 20, 53)), settings={"causal": True}),
    "packed, no keys": Case(packed=((0, 5, 9, 40), (0, 7, 7, 40)), settings={"causal": True}),
    "packed window": Case(
        packed=((0, 5, 9, 40), (0, 7, 7, 40)),
        settings={"window_left": 6, "window_right": 2},
        shape=(0, 0, 0, 4, 2, 16, 16),
    ),
    "block mask": Case(extras=lambda g: {"block_mask": BlockMask(torch.rand(1, 2, 4, 4, generator=g) > 0.5, 10)}),
    "block mask with a mask inside": Case(
        shape=(2, 40, 50, 2, 1, 16, 16),
        extras=lambda g: {
            "block_mask": BlockMask(
                torch.rand(1, 1, 2, 3, generator=g) > 0.4, (20, 18), torch.rand(40, 50, generator=g) > 0.3
            )
        },
        settings={"causal": True},
    ),
    "NaN at keys that a mask hides": Case(
        shape=(2, 40, 40, 2, 1, 16, 16),
        unseen=slice(7, 9),
        extras=lambda _: {"attn_mask": _without(40, 40, slice(7, 9))},
    ),
    "NaN at keys that a float mask hides": Case(
        unseen=slice(7, 9),
        extras=lambda _: {"attn_mask": torch.zeros(40, 40).masked_fill(~_without(40, 40, slice(7, 9)), -torch.inf)},
        settings={"causal": True, "softcap": 2.0},
    ),
    "NaN at keys before every window": Case(
        shape=(1, 20, 64, 2, 2, 16, 16), unseen=slice(0, 41), settings={"causal": True, "window_left": 3}
    ),
    # Rows of 24 numbers are no multiple of 16: for the portable kernels.
    "any memory": Case(shape=(2, 33, 47, 2, 1, 24, 24)),
    "any memory, window, softcap, sinks": Case(
        shape=(2, 47, 33, 4, 2, 24, 8),
        extras=lambda g: {"sinks": torch.randn(4, generator=g)},
        settings={"window_left": 10, "window_right": 3, "softcap": 2.0, "softmax_scale": -0.3},
    ),
    "any memory, top left, alibi": Case(
        shape=(2, 33, 47, 2, 1, 24, 24),
        layout="bhsd",
        extras=lambda g: {"alibi_slopes": torch.rand(2, 2, generator=g)},
        settings={"causal": True, "causal_alignment": "top_left"},
    ),
    "any memory, packed": Case(
        packed=((0, 5, 5, 40), (0, 7, 20, 53)), settings={"causal": True}, shape=(0, 0, 0, 4, 2, 24, 24)
    ),
    "any memory, lengths, float mask, dropout": Case(
        shape=(2, 40, 40, 2, 1, 24, 24),
        extras=lambda g: {"seq_lens": _ints(7, 40), "attn_mask": torch.randn(2, 1, 40, generator=g)},
        settings={"grad_bias": True, "dropout_p": 0.3, "dropout_seed": 2**40 + 17},
    ),
    "any memory, block mask": Case(
        shape=(1, 40, 40, 2, 1, 24, 24),
        extras=lambda g: {"block_mask": BlockMask(torch.rand(1, 2, 4, 4, generator=g) > 0.5, 10)},
    ),
    "any memory, block mask with a mask inside": Case(
        shape=(2, 40, 50, 2, 1, 24, 24),
        extras=lambda g: {
            "block_mask": BlockMask(
                torch.rand(1, 1, 2, 3, generator=g) > 0.4, (20, 18), torch.rand(40, 50, generator=g) > 0.3
            )
        },
        settings={"causal": True},
    ),
}


def differences(case: Case, dtype: torch.dtype, device: str) -> dict[str, float]:
    """Largest difference from eager, relative to the largest value, per result; `infinite` counts LSEs that disagree."""
    drawn = _calls(case, dtype, device)
    results = [
        _run(module, call, d_out, d_lse) for module, (call, d_out, d_lse) in zip((tiled, eager), drawn, strict=True)
    ]
    (out, lse, grads), (right_out, right_lse, right_grads) = results
    finite = torch.isfinite(right_lse)
    found = {
        "out": _difference(out, right_out),
        "lse": _difference(lse[finite], right_lse[finite]),
        "infinite": float((torch.isfinite(lse) != finite).sum()),
    }
    for name in ("q", "k", "v", "bias", "sinks"):
        got, right = getattr(grads, name), getattr(right_grads, name)
        if right is not None:
            found[f"d_{name}"] = _difference(got, right)
    return found


def _difference(got: torch.Tensor, right: torch.Tensor) -> float:
    if right.numel() == 0:
        return 0.0
    error = (got.double() - right.double()).abs().max()
    return float(error / right.double().abs().max().clamp(min=1.0))


def _calls(case: Case, dtype: torch.dtype, device: str) -> list[tuple[Call, torch.Tensor, torch.Tensor]]:
    """The same call twice, with its own output each time; d_out is expanded over heads, d_lse transposed."""
    generator = torch.Generator().manual_seed(7)
    batch, seq_q, seq_k, heads, kv_heads, width, width_v = case.shape
    settings: dict[str, Any] = {"softmax_scale": width**-0.5, **case.settings, **case.extras(generator)}
    shape_q: tuple[int, ...] = (batch, seq_q)
    shape_k: tuple[int, ...] = (batch, seq_k)
    rows: tuple[int, ...] = (batch, heads, seq_q)
    layout = case.layout
    if case.packed is not None:
        starts_q, starts_k = case.packed
        shape_q, shape_k, rows, layout = (starts_q[-1],), (starts_k[-1],), (heads, starts_q[-1]), "thd"
        settings |= {
            "cu_seqlens_q": _ints(*starts_q),
            "cu_seqlens_k": _ints(*starts_k),
            "max_seqlen_q": max(b - a for a, b in pairwise(starts_q)),
            "max_seqlen_k": max(b - a for a, b in pairwise(starts_k)),
        }

    def drawn(*shape: int) -> torch.Tensor:
        tensor = torch.randn(*shape, generator=generator).to(device=device, dtype=dtype)
        return tensor.transpose(1, 2).contiguous() if layout == "bhsd" else tensor

    q, k, v = drawn(*shape_q, heads, width), drawn(*shape_k, kv_heads, width), drawn(*shape_k, kv_heads, width_v)
    if case.unseen is not None:
        for tensor in (k, v):
            (tensor.transpose(1, 2) if layout == "bhsd" else tensor)[:, case.unseen] = torch.nan
    d_out, d_lse = drawn(*shape_q, heads, width_v), torch.randn(rows, generator=generator).to(device)
    settings = {name: _moved(value, device) for name, value in settings.items()}
    return [
        (
            Call(
                q=q, k=k, v=v, out=torch.full_like(d_out, float("nan")), layout=layout,
                lse=torch.full(rows, float("nan"), device=device), needs_backward=True,
                grad_sinks="sinks" in settings, **settings,
            ),
            d_out,
            d_lse,
        )
        for _ in range(2)
    ]  # fmt: skip


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, BlockMask):
        inner = None if value.mask is None else value.mask.to(device)
        return BlockMask(value.blocks.to(device), value.block_size, inner)
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _run(module: Any, call: Call, d_out: torch.Tensor, d_lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Grads]:
    module.run(call)
    assert call.lse is not None
    return call.out, call.lse, module.backward(call, d_out, d_lse)


def visited(seq: int, device: str, **settings: Any) -> tuple[int, int, int]:
    """(key tiles visited by all programs together, rows of a tile, columns of a tile) for one head of length `seq`."""
    q, k, v = (torch.randn(1, seq, 1, 16, device=device) for _ in range(3))
    call = Call(q=q, k=k, v=v, out=torch.empty_like(q), softmax_scale=0.25, **settings)
    operands = operands_of(call)
    config = sources_of("forward", call, operands).config
    visits = torch.zeros(-(-seq // config.rows), dtype=torch.int32, device=device)
    launch_forward(call, operands, None, config, visits=visits)
    return int(visits.sum()), config.rows, config.columns


WALKS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window_left": 40},
    "two-sided": {"window_left": 20, "window_right": 20},
}
LENGTHS = (256, 512)


def main() -> None:
    """Print every case's differences, and the visits of every walk, from this machine's CPU."""
    found: dict[str, Any] = {name: differences(case, torch.float32, "cpu") for name, case in CASES.items()}
    walks = {f"{name}/{seq}": visited(seq, "cpu", **walk) for name, walk in WALKS.items() for seq in LENGTHS}
    json.dump({"cases": found, "walks": walks}, sys.stdout)


if __name__ == "__main__":
    main()
