"""What paged_decode is compared with eager on: a table of calls on paged caches.

    TRITON_INTERPRET=1 python -m tests.backends.paged_decode_cases [--all]     prints JSON: case -> dtype -> differences

Shapes are small and no multiple of a tile, for the interpreter; a GPU runs the same cases in every dtype. Pages lie in
random order; the tails of block tables, unused pages and cells behind a sequence's end are poisoned.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from attn_backends.backends.eager import adapter as eager
from attn_backends.backends.paged_decode import adapter as paged
from attn_backends.backends.paged_decode import launch as launching
from attn_backends.backends.paged_decode.operands import operands_of
from attn_backends.call import Call
from attn_backends.quantization import RANGES
from attn_backends.request import Request

Extras = Callable[[torch.Generator], dict[str, Any]]
FORMATS = {
    "scaled-fp8-e4m3": torch.float8_e4m3fn,
    "scaled-fp8-e5m2": torch.float8_e5m2,
    "scaled-int8": torch.int8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Hq, Hkv, D, Dv, page size; `new` and `lengths` of every sequence; k and v: (format, granularity).

    Sequences of different `new` lengths are packed (`thd`). spare: pages of the pool, and columns of the table, that no
    sequence uses. latent: V is the first Dv columns of K, in its memory, and scaled as K is. rows: of a tile of queries,
    None = as shipped. merge: whether the last split to end may merge all of them. registers: whether tiles wait there.
    magnitude: of quantised numbers. apart: descales of every other cell of a page are times 2^apart, those of the first one 0. turned:
    descales of the even heads are negative. extras draws further arguments.
    """

    heads: tuple[int, int, int, int] = (4, 2, 16, 16)
    page_size: int = 4
    new: tuple[int, ...] = (1, 1)
    lengths: tuple[int, ...] = (37, 70)
    k: tuple[str, str] = ("dense", "none")
    v: tuple[str, str] = ("dense", "none")
    kv_layout: str = "NHD"
    layout: str = "bshd"
    spare: int = 2
    latent: bool = False
    rows: int | None = None
    merge: bool = True
    registers: bool = False
    magnitude: float = 1.0
    apart: float | None = None
    turned: bool = False
    extras: Extras = field(default=lambda _: {})
    settings: dict[str, Any] = field(default_factory=dict)


_FP8 = "scaled-fp8-e4m3"
_E5M2 = "scaled-fp8-e5m2"
_INT8 = "scaled-int8"

CASES: dict[str, Case] = {
    "decode": Case(),
    "decode, causal": Case(settings={"causal": True}),
    "one sequence, many splits": Case(new=(1,), lengths=(300,), spare=0),
    "heads first in the cache": Case(kv_layout="HND", page_size=2),
    "as many heads as tokens in a page": Case(heads=(8, 4, 16, 16)),
    "pages of one token": Case(page_size=1),
    "pages of five tokens": Case(page_size=5),
    "pages longer than a tile": Case(page_size=64),
    "five heads share one": Case(heads=(10, 2, 16, 16)),
    "one KV head": Case(heads=(7, 1, 16, 16), new=(3, 3), settings={"causal": True}),
    "forty heads share one": Case(heads=(40, 1, 16, 16)),
    "odd widths": Case(heads=(4, 2, 40, 24)),
    "empty sequences": Case(new=(1, 1, 1), lengths=(0, 33, 1)),
    "new tokens": Case(new=(9, 9), lengths=(37, 70), settings={"causal": True}),
    "new tokens, heads first": Case(new=(9, 9), layout="bhsd", settings={"causal": True}),
    "more new tokens than keys": Case(new=(9, 9), lengths=(5, 40), settings={"causal": True}),
    "more new tokens than keys, top left": Case(
        new=(9, 9), lengths=(5, 40), settings={"causal": True, "causal_alignment": "top_left"}
    ),
    "mixed": Case(layout="thd", new=(1, 17, 0, 5), lengths=(37, 40, 9, 70), settings={"causal": True}),
    "mixed, decodes in tiles of their own": Case(
        layout="thd", new=(1, 17, 0, 5, 1), lengths=(37, 40, 9, 70, 130), rows=32, settings={"causal": True}
    ),
    "mixed, everything, decodes in tiles of their own": Case(
        layout="thd", new=(1, 17, 5, 2), lengths=(137, 40, 70, 99), rows=32, k=(_FP8, "per_channel"), v=(_FP8, "per_token_head"),
        extras=lambda g: {"sinks": torch.randn(4, generator=g), "alibi_slopes": torch.rand(4, 4, generator=g)},
        settings={"causal": True, "window_left": 30, "softcap": 5.0},
    ),
    "mixed, decodes read V in pairs": Case(
        heads=(4, 2, 24, 40), layout="thd", new=(1, 17, 33, 2), lengths=(137, 40, 70, 99), rows=64, k=(_FP8, "per_head"),
        v=(_INT8, "per_channel"), settings={"causal": True},
    ),
    "mixed, some without keys": Case(layout="thd", new=(1, 7, 5), lengths=(0, 4, 70), settings={"causal": True}),
    "window": Case(lengths=(37, 200), settings={"causal": True, "window_left": 10}),
    "window of oneself": Case(lengths=(37, 200), settings={"causal": True, "window_left": 0}),
    "window without causal": Case(new=(9, 9), lengths=(37, 120), settings={"window_left": 7}),
    "two-sided window": Case(new=(9, 9), lengths=(37, 120), settings={"window_left": 7, "window_right": 3}),
    "two-sided window, top left": Case(
        new=(9, 9), lengths=(37, 120), settings={"window_left": 2, "window_right": 3, "causal_alignment": "top_left"}
    ),
    "right window": Case(new=(9, 9), lengths=(37, 70), settings={"window_right": 2}),
    "window, mixed": Case(
        layout="thd", new=(1, 17, 5), lengths=(137, 40, 70), settings={"causal": True, "window_left": 12}
    ),
    "softcap": Case(settings={"softcap": 2.0}),
    "tiny softcap": Case(settings={"softcap": 1e-4}),
    "sinks": Case(extras=lambda g: {"sinks": torch.randn(4, generator=g)}),
    "sinks of empty rows": Case(
        new=(9, 9), lengths=(5, 0), extras=lambda g: {"sinks": torch.randn(4, generator=g)}, settings={"causal": True}
    ),
    "a sink that is none": Case(extras=lambda g: {"sinks": torch.tensor([0.5, -torch.inf, 3.0, -2.0])}),
    "alibi": Case(new=(3, 3), extras=lambda g: {"alibi_slopes": torch.rand(4, generator=g)}, settings={"causal": True}),
    "alibi per sequence": Case(extras=lambda g: {"alibi_slopes": torch.rand(2, 4, generator=g)}),
    "negative scale": Case(settings={"softmax_scale": -0.7}),
    "scale of zero": Case(settings={"softmax_scale": 0.0}),
    "batch invariant": Case(lengths=(37, 300), settings={"batch_invariant": True}),
    "e4m3 per tensor": Case(k=(_FP8, "per_tensor"), v=(_FP8, "per_tensor")),
    "e4m3 per head": Case(k=(_FP8, "per_head"), v=(_FP8, "per_head"), kv_layout="HND"),
    "e4m3 per channel": Case(k=(_FP8, "per_channel"), v=(_FP8, "per_channel")),
    "e4m3 per token": Case(k=(_FP8, "per_token_head"), v=(_FP8, "per_token_head")),
    "e4m3 per token, heads first": Case(k=(_FP8, "per_token_head"), v=(_FP8, "per_token_head"), kv_layout="HND"),
    "descales below the normal numbers": Case(
        k=(_FP8, "per_head"), v=(_FP8, "per_token_head"), magnitude=1e-39, lengths=(3, 70)
    ),
    "e5m2": Case(k=(_E5M2, "per_tensor"), v=(_E5M2, "per_token_head")),
    "int8": Case(k=(_INT8, "per_channel"), v=(_INT8, "per_token_head")),
    "int8 per tensor": Case(k=(_INT8, "per_tensor"), v=(_INT8, "per_tensor")),
    "V alone": Case(v=(_FP8, "per_head")),
    "K alone": Case(k=(_INT8, "per_token_head")),
    "K and V apart": Case(k=(_INT8, "per_channel"), v=(_E5M2, "per_tensor")),
    "more sequences than are read at a time": Case(
        layout="thd", new=(1, 0, 3, 1) * 10, lengths=(5, 2, 9, 0) * 9 + (60, 7, 33, 1), settings={"causal": True}
    ),
    "heads of 256": Case(heads=(4, 2, 256, 256), settings={"causal": True}),
    "heads of 256, e4m3": Case(heads=(4, 2, 256, 256), k=(_FP8, "per_head"), v=(_FP8, "per_token_head")),
    "heads of 256, new tokens": Case(heads=(4, 1, 256, 256), new=(9, 9), settings={"causal": True}),
    "192 and 128": Case(heads=(4, 2, 192, 128)),
    "192 and 128, new tokens": Case(heads=(4, 1, 192, 128), new=(9, 9), settings={"causal": True}),
    "192 and 128, everything": Case(
        heads=(4, 2, 192, 128), layout="thd", new=(1, 17, 5), lengths=(137, 40, 70), k=(_FP8, "per_channel"), v=(_INT8, "per_channel"),
        extras=lambda g: {"sinks": torch.randn(4, generator=g), "alibi_slopes": torch.rand(3, 4, generator=g)},
        settings={"causal": True, "window_left": 30, "softcap": 5.0},
    ),
    "a latent": Case(heads=(16, 1, 576, 512), latent=True),
    "a latent, many heads, new tokens": Case(
        heads=(40, 1, 576, 512), latent=True, new=(2, 2), page_size=16, settings={"causal": True}
    ),
    "a latent, V apart": Case(heads=(16, 1, 576, 512)),
    "a latent, heads first, empty": Case(heads=(16, 1, 576, 512), latent=True, kv_layout="HND", lengths=(0, 33)),
    "a latent in e4m3": Case(heads=(16, 1, 576, 512), latent=True, k=(_FP8, "per_tensor"), v=(_FP8, "per_tensor")),
    "a latent in e4m3 per token": Case(
        heads=(16, 1, 576, 512), latent=True, k=(_FP8, "per_token_head"), v=(_FP8, "per_token_head")
    ),
    "many splits, a second kernel": Case(new=(1,), lengths=(300,), spare=0, merge=False),
    "empty sequences, a second kernel": Case(new=(1, 1, 1), lengths=(0, 133, 1), merge=False),
    "sinks of empty rows, a second kernel": Case(
        new=(9, 9), lengths=(5, 0), extras=lambda g: {"sinks": torch.randn(4, generator=g)}, settings={"causal": True}, merge=False
    ),
    "mixed, a second kernel": Case(
        layout="thd", new=(1, 17, 0, 5, 1), lengths=(137, 40, 9, 70, 0), settings={"causal": True}, merge=False
    ),
    "many splits of a tile of 32 rows": Case(heads=(40, 1, 16, 16), new=(1,), lengths=(300,), rows=32),
    "many splits, everything": Case(
        lengths=(300, 37), k=(_INT8, "per_token_head"), v=(_FP8, "per_token_head"),
        extras=lambda g: {"sinks": torch.randn(4, generator=g)}, settings={"causal": True, "softcap": 5.0},
    ),
    "descales far apart": Case(k=(_INT8, "per_token_head"), v=(_INT8, "per_token_head"), apart=20.0, magnitude=1e-4),
    "descales farther apart": Case(v=(_FP8, "per_token_head"), apart=-70.0),
    "in registers": Case(lengths=(37, 300), registers=True),
    "in registers, pages of five tokens": Case(page_size=5, lengths=(64, 97), registers=True),
    "in registers, pages longer than a tile": Case(page_size=64, lengths=(64, 200), registers=True),
    "in registers, empty, odd widths": Case(heads=(4, 2, 40, 24), new=(1, 1, 1), lengths=(0, 33, 1), registers=True),
    "in registers, window": Case(lengths=(37, 200), settings={"causal": True, "window_left": 10}, registers=True),
    "in registers, quantised, mixed, decodes in tiles of their own": Case(
        layout="thd", new=(1, 17, 5, 2), lengths=(137, 40, 70, 99), rows=32, k=(_FP8, "per_channel"), v=(_FP8, "per_token_head"),
        settings={"causal": True}, registers=True,
    ),
    "tiles between whole and cut ones": Case(new=(40, 40), lengths=(190, 70), rows=32, settings={"causal": True}),
    "tiles between whole and cut ones, window": Case(
        new=(40, 40), lengths=(190, 300), rows=32, settings={"causal": True, "window_left": 90}
    ),
    "tiles between whole and cut ones, two-sided window, packed": Case(
        layout="thd", new=(40, 1, 33), lengths=(190, 60, 300), rows=32, k=(_FP8, "per_head"), v=(_FP8, "per_head"),
        settings={"window_left": 90, "window_right": 20},
    ),
    "window over descales that nobody sees": Case(
        lengths=(40, 137), v=(_FP8, "per_token_head"), k=(_INT8, "per_token_head"), settings={"causal": True, "window_left": 4}
    ),
    "negative descales": Case(k=(_INT8, "per_head"), v=(_INT8, "per_head"), new=(9, 9), settings={"causal": True}, turned=True),
    "negative descales and scale": Case(k=(_FP8, "per_head"), turned=True, settings={"softmax_scale": -0.7}),
    "quantised, everything": Case(
        layout="thd", new=(1, 17, 5), lengths=(137, 40, 70), k=(_FP8, "per_channel"), v=(_FP8, "per_token_head"),
        extras=lambda g: {"sinks": torch.randn(4, generator=g), "alibi_slopes": torch.rand(3, 4, generator=g)},
        settings={"causal": True, "window_left": 30, "softcap": 5.0},
    ),
}  # fmt: skip


INTERPRETED = (torch.float32, torch.float16)  # bfloat16 is silently wrong there
TURNS = {name: (INTERPRETED[place % 2],) for place, name in enumerate(CASES)}


def request_of(case: Case, dtype: torch.dtype) -> Request:
    """What selection is asked about a case."""
    heads, kv_heads, width, width_v = case.heads
    packed = case.layout == "thd"
    pages = sum(-(-length // case.page_size) for length in case.lengths) + case.spare
    return Request(
        dtype=str(dtype).removeprefix("torch."), seq_q=max(case.new), seq_k=max(case.lengths), batch=len(case.new),
        num_q_heads=heads, num_kv_heads=kv_heads, head_dim_qk=width, head_dim_v=width_v, layout=case.layout, varlen=packed,
        k_format=case.k[0], v_format=case.v[0], k_granularity=case.k[1], v_granularity=case.v[1],
        page_size=case.page_size, kv_layout=case.kv_layout, num_pages=pages, phase="mixed" if packed else "append",
    )  # fmt: skip


def differences(case: Case, dtype: torch.dtype, device: str) -> dict[str, float]:
    """Largest difference from eager in float64, relative to the largest value; `infinite` counts LSEs that disagree."""
    call, right = calls(case, dtype, device)
    with mock.patch.object(launching, "MOST_LENGTHS", 16):
        operands = operands_of(call)
        config = launching.chosen(call, operands.sizes)
        config = dataclasses.replace(config, rows=case.rows or config.rows)
        if case.registers:
            config = dataclasses.replace(config, registers=True, stages=1)
        assert call.seq_lens is not None
        lengths = call.seq_lens.clone()
        for shorter in (3, 1):  # as a graph does: the first run at other lengths leaves nothing behind
            call.seq_lens.copy_(lengths // shorter)
            launching.launch(call, operands, config, merge=case.merge)
    eager.run(right)
    assert call.lse is not None
    assert right.lse is not None
    finite = torch.isfinite(right.lse)
    return {
        "out": _difference(call.out, right.out, case.magnitude if dtype is torch.float32 else 1.0),
        "lse": _difference(call.lse[finite], right.lse[finite]),
        "infinite": float((torch.isfinite(call.lse) != finite).sum()),
    }


def _difference(got: torch.Tensor, right: torch.Tensor, least: float = 1.0) -> float:
    """Of the largest of the right numbers, or of `least` if that is more."""
    if right.numel() == 0:
        return 0.0
    error = (got.double() - right.double()).abs().max()
    return float(error / right.double().abs().max().clamp(min=least))


def calls(case: Case, dtype: torch.dtype, device: str) -> tuple[Call, Call]:
    """The call, and the same one for eager in float64."""
    generator = torch.Generator().manual_seed(7)
    heads, _, width, width_v = case.heads
    packed = case.layout == "thd"
    settings: dict[str, Any] = {"softmax_scale": width**-0.5, **case.settings, **case.extras(generator)}
    shape: tuple[int, ...] = (sum(case.new),) if packed else (len(case.new), case.new[0])
    rows = (heads, *shape) if packed else (shape[0], heads, shape[1])
    if packed:
        ends = torch.tensor([0, *case.new]).cumsum(0)
        settings |= {"cu_seqlens_q": ends.to(torch.int32)}
    q = torch.randn(*shape, heads, width, generator=generator)
    d_out = torch.empty(*shape, heads, width_v)
    if case.layout == "bhsd":
        q, d_out = q.transpose(1, 2).contiguous(), d_out.transpose(1, 2).contiguous()
    table, pages = block_table(case, generator)
    k, k_scale = _cache(case, pages, width, case.k, dtype, generator)
    v, v_scale = (k, k_scale) if case.latent else _cache(case, pages, width_v, case.v, dtype, generator)
    per_token = [scale for scale in (k_scale, v_scale) if scale is not None and scale.dim() == 3]
    _poison(case, (k, v), per_token, table)
    settings |= {
        "block_table": table, "seq_lens": torch.tensor(case.lengths, dtype=torch.int32), "kv_layout": case.kv_layout,
        "k_format": case.k[0], "v_format": case.v[0], "k_granularity": case.k[1], "v_granularity": case.v[1],
        "k_descale": k_scale, "v_descale": v_scale, "layout": case.layout,
        "max_seqlen_q": max(case.new), "max_seqlen_k": max(case.lengths),
    }  # fmt: skip
    settings = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in settings.items()
    }
    q, k, v = q.to(device, dtype), k.to(device), v.to(device)

    def call_in(kind: torch.dtype) -> Call:
        keys = _read_as(k, kind)
        values = keys[..., :width_v] if case.latent else _read_as(v, kind)
        return Call(
            q=q.to(kind), k=keys, v=values, lse=torch.full(rows, torch.nan, device=device),
            out=torch.full(d_out.shape, torch.nan, dtype=kind, device=device), **settings,
        )  # fmt: skip

    return call_in(dtype), call_in(torch.float64)


def _read_as(cache: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return cache if cache.element_size() == 1 else cache.to(dtype)


def block_table(case: Case, generator: torch.Generator) -> tuple[torch.Tensor, int]:
    """(table, pages of the pool): pages in random order, entries behind a sequence's last page far outside the pool."""
    counts = [-(-length // case.page_size) for length in case.lengths]
    pages = sum(counts) + case.spare
    order = torch.randperm(pages, generator=generator).to(torch.int32)
    table = torch.full((len(counts), max(max(counts), 1) + case.spare), 2**31 - 1, dtype=torch.int32)
    table[:, 1::2] = -1
    start = 0
    for row, count in enumerate(counts):
        table[row, :count] = order[start : start + count]
        start += count
    return table, pages


def _cache(
    case: Case, pages: int, width: int, kind: tuple[str, str], dtype: torch.dtype, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A cache [pages, page, heads, width], or heads first, and its descale: channels differ by up to e^3."""
    kv_heads = case.heads[1]
    values = torch.randn(pages, case.page_size, kv_heads, width, generator=generator)
    form, granularity = kind
    if form == "dense":
        return _laid_out(values.to(dtype), case), None
    values = values * torch.rand(width, generator=generator).mul(3).exp() * case.magnitude
    stored = FORMATS[form]
    least, most = RANGES[str(stored).removeprefix("torch.")]
    reduced = {"per_tensor": (0, 1, 2, 3), "per_head": (0, 1, 3), "per_channel": (0, 1), "per_token_head": (3,)}[
        granularity
    ]
    descale = values.abs().amax(dim=reduced, keepdim=True) / most
    if case.turned:
        descale[:, :, ::2].neg_()
    scaled = (values / descale).clamp(least, most)
    codes = (scaled.round() if stored == torch.int8 else scaled).to(stored)
    shapes = {"per_tensor": (1,), "per_head": (kv_heads,), "per_channel": (kv_heads, width)}
    if granularity == "per_token_head":
        if case.apart is not None:
            descale[:, 1::2] *= 2.0**case.apart
            descale[:, 0] = 0.0
        return _laid_out(codes, case), _laid_out(descale, case).squeeze(-1)
    return _laid_out(codes, case), descale.reshape(shapes[granularity])


def _laid_out(cache: torch.Tensor, case: Case) -> torch.Tensor:
    return cache if case.kv_layout == "NHD" else cache.transpose(1, 2).contiguous()


def _poison(case: Case, caches: tuple[torch.Tensor, ...], descales: list[torch.Tensor], table: torch.Tensor) -> None:
    """NaN in every cell that no sequence uses, or no query sees any more; the largest number where the format has no NaN.

    The descales of these cells are infinite.
    """
    used = torch.zeros(caches[0].shape[0], case.page_size, dtype=torch.bool)
    for row, (new, length) in enumerate(zip(case.new, case.lengths, strict=True)):
        places = torch.arange(_first_seen(case, new, length), length)
        used[table[row, places // case.page_size].long(), places % case.page_size] = True
    for cache in caches:
        cells = cache if case.kv_layout == "NHD" else cache.transpose(1, 2)
        if cache.element_size() == 1:
            cells.view(torch.uint8)[~used] = 127
        else:
            cells[~used] = torch.nan
    for descale in descales:
        (descale if case.kv_layout == "NHD" else descale.transpose(1, 2))[~used] = torch.inf


def _first_seen(case: Case, new: int, length: int) -> int:
    """The first key that the window of the first new token shows."""
    left = case.settings.get("window_left", -1)
    first = 0 if case.settings.get("causal_alignment") == "top_left" else length - new
    return max(first - left, 0) if left >= 0 else 0


def long_call(
    *, pages: int, page_size: int, heads: tuple[int, int, int, int] = (8, 2, 128, 128), only_last: bool = False
) -> Call:
    """Two sequences of one new token on a GPU, bfloat16: half of the pool each in random order, or its last two pages."""
    num_heads, kv_heads, width, width_v = heads
    generator = torch.Generator("cuda").manual_seed(3)
    q = torch.randn(2, 1, num_heads, width, generator=generator, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.empty(pages, page_size, kv_heads, w, device="cuda", dtype=torch.bfloat16) for w in (width, width_v))
    used = slice(-2, None) if only_last else slice(None)
    for cache in (k, v):
        cache[used].normal_(generator=generator)
    order = torch.randperm(pages, generator=generator, device="cuda").to(torch.int32).view(2, -1)
    if only_last:
        order = torch.tensor([[pages - 1], [pages - 2]], dtype=torch.int32, device="cuda")
    columns = order.shape[1]
    return Call(
        q=q, k=k, v=v, out=torch.full_like(q, torch.nan), block_table=order, phase="decode", softmax_scale=width**-0.5,
        seq_lens=torch.full((2,), columns * page_size, dtype=torch.int32, device="cuda"),
        causal=True, max_seqlen_q=1, max_seqlen_k=columns * page_size,
    )  # fmt: skip


def set_lengths(call: Call, lengths: list[int]) -> None:
    """Other lengths, in the same tensor."""
    assert call.seq_lens is not None
    call.seq_lens.copy_(torch.tensor(lengths, dtype=torch.int32))


def run_paged(call: Call) -> None:
    """The backend under test."""
    paged.run(call)


def difference_from_eager(call: Call) -> float:
    """Of what the call's output holds, relative to the largest value."""
    out = torch.full_like(call.out, torch.nan)
    eager.run(dataclasses.replace(call, out=out))
    return _difference(call.out, out)


# Keys of a sequence, and whether the last split to end may merge them.
NAN = {"one split": (40, True), "merged by the last split": (1000, True), "merged by a second kernel": (1000, False)}


def numbers_in_spite_of_nan(name: str, dtype: torch.dtype, device: str) -> int:
    """How many numbers of out and LSE are none where one key that every row sees is NaN."""
    length, merge = NAN[name]
    call, _right = calls(Case(lengths=(length,), new=(1,)), dtype, device)
    assert call.block_table is not None
    call.k[call.block_table[0, length // 32].long(), 1] = torch.nan  # one key, in the midst of the sequence
    launching.launch(call, operands_of(call), merge=merge)
    assert call.lse is not None
    return int((~torch.isnan(call.out)).sum()) + int((~torch.isnan(call.lse)).sum())


def numbers_in_spite_of_a_nan_descale(device: str) -> int:
    """How many results are wrong where one head's K is scaled by NaN: its rows are NaN, but 0 and -inf without keys."""
    case = Case(new=(9, 9), lengths=(5, 40), k=(_FP8, "per_head"), settings={"causal": True})
    call, _right = calls(case, torch.float32, device)
    assert call.k_descale is not None
    call.k_descale[0] = torch.nan
    launching.launch(call, operands_of(call))
    assert call.lse is not None
    heads = case.heads[0] // case.heads[1]
    spoilt, whole = call.out[:, :, :heads], call.out[:, :, heads:]
    empty = case.new[0] - case.lengths[0]
    wrong = (spoilt[0, :empty] != 0).sum() + (call.lse[0, :, :empty] != -torch.inf).sum() + torch.isnan(whole).sum()
    return int(wrong + (~torch.isnan(spoilt[0, empty:])).sum() + (~torch.isnan(spoilt[1])).sum())


def error_of_huge_products_times(scale: float, device: str) -> float:
    """Of the output, where products of 10^36 times so little are next to nothing."""
    call, right = calls(Case(new=(1,), lengths=(11,), settings={"softmax_scale": scale}), torch.float32, device)
    for one in (call, right):
        one.q.mul_(3e18)
        one.k.mul_(3e18)
    launching.launch(call, operands_of(call))
    eager.run(right)
    return _difference(call.out, right.out)


def numbers_of_an_infinite_row_without_keys(device: str) -> int:
    """How many numbers of its output are not 0, where the scale is 0 and K is scaled by channel."""
    case = Case(new=(9, 9), lengths=(5, 40), k=(_INT8, "per_channel"), settings={"causal": True, "softmax_scale": 0.0})
    call, _right = calls(case, torch.float16, device)
    call.q[0, 1, :, 3] = torch.inf
    launching.launch(call, operands_of(call))
    return int((call.out[0, 1] != 0).sum())


HUGE = (0.0, 1e-39, 1e-35)


def main() -> None:
    """Print every case's differences in one dtype by turns, or in all, from this machine's CPU; or what NaN does."""
    if sys.argv[1:] == ["--nan"]:
        found_nan = {name: numbers_in_spite_of_nan(name, torch.float32, "cpu") for name in NAN}
        found_nan |= {
            "descale": numbers_in_spite_of_a_nan_descale("cpu"),
            "row": numbers_of_an_infinite_row_without_keys("cpu"),
        }
        huge = {str(scale): error_of_huge_products_times(scale, "cpu") for scale in HUGE}
        json.dump({**found_nan, "huge": huge}, sys.stdout)
        return
    found = {
        name: {str(dtype): differences(CASES[name], dtype, "cpu") for dtype in dtypes}
        for name, dtypes in (dict.fromkeys(CASES, INTERPRETED) if sys.argv[1:] == ["--all"] else TURNS).items()
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
