"""Calls that `fp8` is held to: its result against float64 on the very codes that it read. A table.

    TRITON_INTERPRET=1 python -m tests.backends.fp8_cases      prints JSON: case -> what is wrong

An element may be off by what rounding the weights to e4m3 costs, and no more: half a step of each weight times its |v|.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from attn_backends import Policy, attention
from attn_backends.backends.fp8 import adapter
from attn_backends.backends.fp8.attend import attend
from attn_backends.backends.fp8.block import BLOCK
from attn_backends.backends.fp8.operands import Operands, key_order
from attn_backends.call import Call

POLICY = Policy(numerics={"exact", "quantized"})
HALF_STEP = 2.0**-4  # of e4m3, relative
LEAST_STEP = 2.0**-10 / 256  # half of the step of the smallest weights, where a row's largest is 1
ZEROS = {"zeros": (0, 1, 2), "queries of zeros": (0,), "keys of zeros": (1,)}  # fill -> of q, k and v


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """lengths: (Sq, Sk) of each sequence, packed where layout is thd; given: descales' granularities of q, k, v, or none.

    fill: what is put where (see `_fill`); strided: q, k and v have gaps; expanded: k and v are one entry's, of "heads" or of the
    "batch"; into: how the output lies, where it is not contiguous (see `_output`).
    """

    lengths: tuple[tuple[int, int], ...] = ((70, 200),)
    layout: str = "bshd"
    heads: tuple[int, int] = (1, 1)
    widths: tuple[int, int] = (64, 64)
    causal: bool = False
    left: int = -1
    right: int = -1
    scale: float | None = None
    given: tuple[str, str, str] | None = None
    by_kv_head: bool = False
    fill: str = "normal"
    dtype: str = "float16"
    out: str | None = None
    strided: bool = False
    expanded: str | None = None
    into: str | None = None


CASES: dict[str, Case] = {
    "full": Case(),
    "causal, grouped": Case(heads=(2, 1), causal=True),
    "whole tiles": Case(lengths=((128, 256),), causal=True),
    "more queries than keys": Case(lengths=((150, 70),), causal=True),
    "one query, one key": Case(lengths=((1, 1),)),
    "one query, causal": Case(lengths=((1, 130),), causal=True),
    "left window": Case(lengths=((140, 300),), causal=True, left=20),
    "left window, full": Case(left=30),
    "two-sided window": Case(lengths=((140, 150),), left=9, right=70),
    "right window": Case(lengths=((70, 100),), right=3),
    "a window of one key": Case(causal=True, left=0),
    "two sequences, heads first, grouped": Case(lengths=((65, 129),) * 2, layout="bhsd", heads=(4, 2), causal=True),
    "strided": Case(strided=True, causal=True),
    "k and v expanded over heads": Case(lengths=((40, 140),) * 2, heads=(4, 2), expanded="heads", causal=True),
    "k and v expanded over the batch": Case(lengths=((40, 140),) * 2, heads=(2, 2), expanded="batch", layout="bhsd"),
    "packed, expanded over heads": Case(lengths=((5, 7), (64, 130)), heads=(2, 2), layout="thd", expanded="heads"),
    "e4m3, expanded over heads": Case(given=("per_tensor", "block", "per_head"), heads=(4, 2), expanded="heads"),
    "e4m3, expanded over the batch": Case(lengths=((70, 140),) * 2, given=("per_tensor",) * 3, expanded="batch"),
    "every other column of an output": Case(into="columns", causal=True),
    "an output whose rows are odd": Case(into="rows", layout="bhsd"),
    "an output that begins anywhere": Case(into="start", causal=True),
    "packed, every other column of an output": Case(lengths=((5, 7), (64, 130)), layout="thd", into="columns"),
    "a query head of its own": Case(lengths=((40, 70),), heads=(3, 3), causal=True),
    "3 query heads to a key head": Case(lengths=((40, 70),), heads=(6, 2), causal=True),
    "8 query heads to a key head": Case(lengths=((40, 70),), heads=(16, 2), causal=True),
    "one key head": Case(lengths=((40, 140),), heads=(5, 1), given=("per_head",) * 3),
    "packed, 3 query heads to a key head": Case(lengths=((5, 7), (64, 130)), heads=(6, 2), layout="thd", causal=True),
    "no keys": Case(lengths=((70, 0),) * 2, heads=(2, 1)),
    "no queries": Case(lengths=((0, 70),) * 2, heads=(2, 1), causal=True),
    "no keys, e4m3": Case(lengths=((70, 0),), layout="bhsd", given=("per_tensor",) * 3),
    "packed, no keys": Case(lengths=((5, 0), (64, 0)), layout="thd", causal=True),
    "packed, no queries": Case(lengths=((0, 5), (0, 130)), layout="thd"),
    "128 wide": Case(widths=(128, 128), causal=True),
    "256 wide": Case(lengths=((40, 140),), widths=(256, 256), causal=True),
    "two widths": Case(widths=(64, 128)),
    "packed": Case(lengths=((5, 7), (0, 130), (131, 0), (64, 200), (30, 10)), layout="thd", causal=True),
    "packed, window": Case(lengths=((90, 150), (3, 200)), layout="thd", causal=True, left=40),
    "packed, e4m3 in blocks": Case(lengths=((90, 150), (3, 9)), layout="thd", causal=True, given=("block",) * 3),
    "a scale of its own": Case(scale=0.3, causal=True),
    "a negative scale": Case(scale=-0.2, causal=True),
    "a scale of 0": Case(scale=0.0),
    "a scale that is next to nothing": Case(scale=1e-38, causal=True),
    "a tiny scale": Case(scale=-1e-30),
    "scores of 2^27": Case(scale=2.4e6, fill="twins", causal=True),
    "scores of -2^27": Case(lengths=((70, 100),), scale=-1.5e7, fill="constant"),
    "a huge scale": Case(scale=1e30, fill="twins"),
    "a huge scale, e4m3": Case(scale=1e30, fill="twins", given=("per_tensor",) * 3),
    "e4m3 per tensor": Case(given=("per_tensor",) * 3),
    "e4m3 per head": Case(given=("per_head",) * 3, heads=(4, 2), causal=True),
    "e4m3 per sequence and head": Case(lengths=((65, 129),) * 2, given=("per_batch_head",) * 3, heads=(4, 2)),
    "e4m3 per head, q by KV head": Case(given=("per_head",) * 3, heads=(4, 2), by_kv_head=True),
    "e4m3 in blocks": Case(lengths=((150, 300),), given=("block",) * 3, heads=(4, 2), causal=True),
    "e4m3 in blocks, q by KV head": Case(lengths=((150, 300),), given=("block",) * 3, heads=(4, 2), by_kv_head=True),
    "e4m3, each its own": Case(given=("per_tensor", "block", "per_head"), left=50, layout="bhsd"),
    "e4m3, strided": Case(given=("per_tensor",) * 3, strided=True),
    "zeros": Case(fill="zeros"),
    "zeros, a huge scale": Case(fill="zeros", scale=1e36),
    "queries of zeros": Case(fill="queries of zeros", scale=-3.0, causal=True),
    "keys of zeros": Case(fill="keys of zeros", scale=1e20),
    "a block of zeros": Case(fill="a block of zeros"),
    "constant blocks": Case(fill="constant", causal=True),
    "at 448": Case(fill="448", scale=1e-4),
    "outliers": Case(fill="outliers", causal=True),
    "NaN at keys that no row sees": Case(lengths=((4, 300),), causal=True, left=20, fill="unseen"),
    "NaN at codes that no row sees": Case(lengths=((4, 300),), causal=True, left=20, fill="unseen", given=("per_tensor",) * 3),
    "float32 out": Case(out="float32", causal=True),
}  # fmt: skip
ON_A_GPU = {
    f"bfloat16, {width} wide, {name}": Case(dtype="bfloat16", widths=(width, width), **options)
    for width in (64, 128, 256)
    for name, options in {
        "full": {"lengths": ((1000, 1111),) * 2, "heads": (4, 2)},
        "causal": {"lengths": ((1024, 1024),) * 2, "heads": (8, 2), "causal": True},
        "causal, more keys": {"lengths": ((300, 1500),), "causal": True, "layout": "bhsd"},
        "causal, more queries": {"lengths": ((700, 333),), "causal": True},
        "window": {"lengths": ((1000, 1500),), "causal": True, "left": 200},
        "packed": {"lengths": ((300, 700), (1, 1000), (513, 513)), "causal": True, "layout": "thd"},
        "e4m3 in blocks": {"lengths": ((1000, 1111),), "given": ("block",) * 3, "causal": True},
        "e4m3 per head": {"lengths": ((513, 700),), "given": ("per_head",) * 3, "heads": (4, 2), "by_kv_head": True},
        "outliers": {"lengths": ((1000, 1000),), "fill": "outliers"},
        "negative scale": {"lengths": ((200, 300),), "scale": -0.1, "causal": True},
        "scores of 2^27": {"lengths": ((200, 300),), "scale": 1.5e8 / width, "fill": "twins"},
        "a huge scale": {"lengths": ((300, 300),), "scale": 1e30, "fill": "twins", "causal": True},
        "every other column of an output": {"lengths": ((200, 300),), "into": "columns", "causal": True},
        "an output whose rows are odd": {"lengths": ((200, 300),), "into": "rows"},
        "an output that begins anywhere": {"lengths": ((256, 256),), "into": "start"},
        "expanded over heads": {"lengths": ((200, 300),) * 2, "heads": (4, 2), "expanded": "heads", "causal": True},
        "e4m3, expanded over the batch": {"lengths": ((200, 300),) * 2, "expanded": "batch", "given": ("per_tensor",) * 3},
        "a query head of its own": {"lengths": ((300, 513),), "heads": (3, 3), "causal": True},
        "3 query heads to a key head": {"lengths": ((300, 513),) * 2, "heads": (6, 2), "causal": True},
        "8 query heads to a key head": {"lengths": ((300, 513),) * 2, "heads": (16, 2)},
        "one key head, e4m3": {"lengths": ((300, 513),), "heads": (8, 1), "given": ("block", "per_head", "block"), "causal": True},
        "no keys": {"lengths": ((200, 0),), "heads": (2, 1)},
    }.items()
}  # fmt: skip


NAMES = tuple(CASES)


def wrong(case: Case, device: str) -> dict[str, float]:
    """What is off, by how much of what is allowed; empty where nothing is. On a GPU through `attention`."""
    arguments, tensors = _arguments(case, device)
    whole, into = _output(case, tensors["q"])
    out, lse, operands = _attended(case, arguments, tensors, into)
    if operands is None:
        return {} if bool((out == 0).all()) and bool((lse == -math.inf).all()) else {"rows without keys": math.inf}
    found: dict[str, float] = {}
    if case.into is not None and int(whole.isnan().sum()) != whole.numel() - into.numel():
        found["beside the output"] = math.inf
    # The units of a GPU add products with fewer bits than float32 has: about eleven, each time that they add 32 products.
    least, share, lost = (2e-3, 1e-3, 2.0**-11 * case.widths[0] / 32) if device == "cuda" else (1e-4, 1e-5, 0.0)
    for entry, (rows, lse_rows, wanted) in enumerate(_pieces(case, out, lse, operands)):
        want, want_lse, allowed, size = wanted
        lse_allowed = least + share * want_lse.abs() + lost * size
        empty = want_lse == -math.inf
        for name, value in {
            "out": ((rows.double() - want).abs() / allowed).nan_to_num(math.inf).amax() if want.numel() else 0.0,
            "lse": ((lse_rows.double() - want_lse).abs() / lse_allowed)[~empty].nan_to_num(math.inf).amax() if (~empty).any() else 0.0,
            "empty rows": 2.0 * float((lse_rows[empty] != -math.inf).any() or bool((rows[empty] != 0).any())),
        }.items():  # fmt: skip
            if float(value) > 1.0:
                found[f"{name} of sequence {entry}"] = float(value)
    return found


def _attended(
    case: Case, arguments: dict[str, Any], tensors: dict[str, torch.Tensor], into: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Operands | None]:
    """(out, lse, what the kernel read; None where none was launched)."""
    read: list[Operands] = []
    with mock.patch.object(adapter, "attend", lambda operands, *rest: (read.append(operands), attend(operands, *rest))):
        if tensors["q"].device.type == "cuda":
            options = {key: value for key, value in arguments.items() if value is not None}
            options |= {} if case.into is None else {"out": into}
            out, lse = attention(**tensors, **options, return_lse=True, policy=POLICY, backend="fp8")
        else:
            call = _call(case, arguments, tensors, into)
            adapter.run(call)
            out, lse = call.out, call.lse
    return out, lse, read[0] if read else None


def _output(case: Case, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(memory, the output in it), NaN: contiguous, or nothing that TMA could describe."""
    coded = torch.bfloat16 if q.device.type == "cuda" else torch.float16
    dtype = getattr(torch, case.out) if case.out else (coded if case.given else q.dtype)
    shape = (*q.shape[:-1], case.widths[1])
    gap = {None: 0, "columns": shape[-1], "rows": 1, "start": 0}[case.into]
    start = case.into == "start"
    whole = torch.full((math.prod(shape[:-1]) * (shape[-1] + gap) + start,), math.nan, dtype=dtype, device=q.device)
    rows = whole[start:].view(*shape[:-1], shape[-1] + gap)
    return whole, rows[..., ::2] if case.into == "columns" else rows[..., : shape[-1]]


def _call(case: Case, arguments: dict[str, Any], tensors: dict[str, torch.Tensor], out: torch.Tensor) -> Call:
    """The call as the host would make it."""
    q = tensors["q"]
    token, head = {"bshd": (1, 2), "bhsd": (2, 1), "thd": (0, 1)}[case.layout]
    rows = (q.shape[head], q.shape[token]) if case.layout == "thd" else (q.shape[0], q.shape[head], q.shape[token])
    names = {
        name: "per_head" if got == "per_batch_head" else got
        for name, got in zip("qkv", case.given or ("none",) * 3, strict=True)
    }
    formats = {f"{name}_format": "scaled-fp8-e4m3" if case.given else "dense" for name in "qkv"}
    kept = (
        "layout",
        "causal",
        "window_left",
        "window_right",
        "cu_seqlens_q",
        "cu_seqlens_k",
        "max_seqlen_q",
        "max_seqlen_k",
        "q_descale",
        "k_descale",
        "v_descale",
    )
    return Call(
        **tensors, **{name: arguments[name] for name in kept if arguments.get(name) is not None}, **formats,
        **{f"{name}_granularity": got for name, got in names.items()}, softmax_scale=_scale(case),
        out=out, lse=torch.full(rows, math.nan),
    )  # fmt: skip


def _scale(case: Case) -> float:
    return case.widths[0] ** -0.5 if case.scale is None else case.scale


def _arguments(case: Case, device: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(11)
    tensors, scales = {}, {}
    for index, name in enumerate("qkv"):
        side = min(index, 1)
        heads, width = case.heads[side], case.widths[index == 2]
        lengths = [pair[side] for pair in case.lengths]
        batch, tokens = (1, sum(lengths)) if case.layout == "thd" else (len(lengths), lengths[0])
        x = torch.randn(batch, tokens, heads, width, generator=generator)
        _fill(case, x, index)
        if case.given:
            x, scales[f"{name}_descale"] = _coded(case, case.given[index], x, side, max(lengths), generator)
        else:
            x = x.to(getattr(torch, case.dtype))
        tensors[name] = _laid_out(case, x.to(device), side)
    arguments: dict[str, Any] = {
        "layout": case.layout, "causal": case.causal, "window_left": case.left, "window_right": case.right,
        "softmax_scale": case.scale, "out_dtype": getattr(torch, case.out) if case.out else None,
        **{name: scale.to(device) for name, scale in scales.items()},
    }  # fmt: skip
    if case.given and "block" in case.given:
        arguments["scale_block"] = BLOCK
    if case.layout == "thd":
        for side, name in enumerate("qk"):
            lengths = [pair[side] for pair in case.lengths]
            arguments[f"cu_seqlens_{name}"] = torch.tensor([sum(lengths[:at]) for at in range(len(lengths) + 1)], dtype=torch.int32, device=device)  # fmt: skip
            arguments[f"max_seqlen_{name}"] = max(lengths)
    return arguments, tensors


def _laid_out(case: Case, x: torch.Tensor, side: int) -> torch.Tensor:
    """[batch, tokens, heads, width] in the case's layout and strides; codes have gaps between rows, numbers between columns."""
    x = {"thd": x[0], "bshd": x, "bhsd": x.transpose(1, 2).contiguous()}[case.layout]
    if case.strided and case.given:
        x = torch.stack((x.view(torch.uint8),) * 2, -2).view(x.dtype)[..., 0, :]
    elif case.strided:
        x = torch.stack((x, x), -1)[..., 0]
    if case.expanded and side == 1:
        dim = 0 if case.expanded == "batch" else {"thd": 1, "bshd": 2, "bhsd": 1}[case.layout]
        x = x.narrow(dim, 0, 1).expand(x.shape)
    return x


def _coded(
    case: Case, granularity: str, x: torch.Tensor, side: int, longest: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """(e4m3 [batch, tokens, heads, width], descale): scales between 0.25 and 1.75 that nobody could guess."""
    heads = case.heads[1] if case.by_kv_head else case.heads[side]
    batch = len(case.lengths)
    shape = {
        "per_tensor": (), "per_head": (heads,), "per_batch_head": (batch, heads),
        "block": (batch, heads, max(1, -(-longest // BLOCK))),
    }[granularity]  # fmt: skip
    return x.to(torch.float8_e4m3fn), torch.rand(shape, generator=generator) * 1.5 + 0.25


def _fill(case: Case, x: torch.Tensor, index: int) -> None:
    """Into q, k or v [batch, tokens, heads, width], by `index`. twins: query i is key i, whose score is far above all others."""
    if index in ZEROS.get(case.fill, ()):
        x[...] = 0.0
    elif case.fill == "twins" and index < 2:
        x[...] = torch.randn(1024, x.shape[-1], generator=torch.Generator().manual_seed(5))[: x.shape[1], None, :]
    elif case.fill == "a block of zeros":
        x[:, :BLOCK] = 0.0
    elif case.fill == "constant":
        x[:, :BLOCK], x[:, BLOCK:] = 0.37, -0.5
    elif case.fill == "448":
        x[:, ::3], x[:, 1::3] = 448.0, -448.0
    elif case.fill == "outliers":
        x[..., 3] *= 30.0
    elif case.fill == "unseen" and index > 0:
        x[:, : case.lengths[0][1] - case.lengths[0][0] - case.left] = math.nan


def _pieces(case: Case, out: torch.Tensor, lse: torch.Tensor, operands: Operands) -> Any:
    """For each sequence: its rows [H, Sq, Dv] of out, of lse, and what they should be."""
    heads_first = adapter.heads_first(out, case.layout)
    lse = lse.unsqueeze(0) if case.layout == "thd" else lse
    for entry in range(len(case.lengths)):
        (first_q, seq_q), (first_k, seq_k) = (_span(case, entry, side) for side in (0, 1))
        batch = 0 if case.layout == "thd" else entry
        values = (
            _numbers(operands.q8[batch, :, first_q : first_q + seq_q], operands.q_scale[entry]),
            _numbers(operands.k8[batch, :, first_k : first_k + seq_k], operands.k_scale[entry]),
            _numbers(_untransposed(operands.vt8[entry])[:, :seq_k], operands.v_scale[entry]),
        )
        rows = heads_first[batch, :, first_q : first_q + seq_q]
        yield rows, lse[batch, :, first_q : first_q + seq_q], _exact(case, *values, rows.dtype)


def _span(case: Case, entry: int, side: int) -> tuple[int, int]:
    before = sum(pair[side] for pair in case.lengths[:entry]) if case.layout == "thd" else 0
    return before, case.lengths[entry][side]


def _numbers(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float64 [H, S, D]."""
    return codes.double() * scales.double().repeat_interleave(BLOCK, dim=1)[:, : codes.shape[1], None]


def _untransposed(vt8: torch.Tensor) -> torch.Tensor:
    """[H, Sp, Dv] of [H, Dv, Sp]."""
    whole = torch.empty_like(vt8, dtype=torch.float32)
    whole[..., key_order(vt8.shape[-1]).to(vt8.device)] = vt8.float()
    return whole.transpose(1, 2)


def _exact(
    case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(out, lse, what out may be off by, size of a row's products: sum_j p_j sum_c |q_c k_jc| scale) in float64."""
    group = q.shape[0] // max(1, k.shape[0])
    k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    diagonal = torch.arange(q.shape[1], device=q.device)[:, None] + k.shape[1] - q.shape[1]
    key = torch.arange(k.shape[1], device=q.device)[None, :]
    right = 0 if case.causal else case.right
    hidden = torch.zeros(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device)
    if right >= 0:
        hidden |= key > diagonal + right
    if case.left >= 0:
        hidden |= key < diagonal - case.left
    k, v = (torch.where(hidden.all(dim=0)[:, None], 0.0, x) for x in (k, v))
    scores = (q @ k.transpose(1, 2) * _scale(case)).masked_fill(hidden, -math.inf)
    lse = scores.logsumexp(dim=-1) if scores.shape[-1] else torch.full(scores.shape[:2], -math.inf, device=q.device)
    weights = (scores - lse.nan_to_num(0.0, 0.0, 0.0)[..., None]).exp()
    weights = torch.where(hidden, 0.0, weights)
    out = weights @ v
    share = (HALF_STEP * weights + LEAST_STEP * ~hidden) @ v.abs()
    size = (weights * (q.abs() @ k.abs().transpose(1, 2))).sum(-1) * abs(_scale(case))
    return out, lse, share * 1.02 + out.abs() * torch.finfo(dtype).eps + 1e-6, size


def main() -> None:
    """Print every case's faults, from this machine's CPU."""
    json.dump({name: wrong(case, "cpu") for name, case in CASES.items()}, sys.stdout)


if __name__ == "__main__":
    main()
