"""`append_kv`: the right cell, the right number, nothing else touched, and nothing at all after an error."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from attn_backends.errors import RequestError
from attn_backends.host.append_kv import append_kv

PAGES, PAGE, HEADS, D, DV = 4, 3, 2, 4, 6
SLOTS = torch.tensor([7, -1, 0, 11, 4])
LIMITS = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}
QUANTISED = list(LIMITS)


def tokens(width: int, dtype: torch.dtype = torch.float32, seed: int = 0, scale: float = 5.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(len(SLOTS), HEADS, width, generator=generator) * scale).to(dtype)


def cache(width: int, dtype: torch.dtype, layout: str, fill: float = 1.0) -> torch.Tensor:
    shape = (PAGES, PAGE, HEADS, width) if layout == "NHD" else (PAGES, HEADS, PAGE, width)
    return torch.full(shape, fill).to(dtype)


def cell(pool: torch.Tensor, slot: int, layout: str) -> torch.Tensor:
    """[Hkv, D] (or [Hkv] of a pool of scales) at a slot."""
    page, inside = divmod(slot, PAGE)
    return pool[page, inside] if layout == "NHD" else pool[page, :, inside]


def written() -> dict[int, int]:
    return {int(slot): token for token, slot in enumerate(SLOTS) if slot >= 0}


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_dense_cache_holds_the_rows_themselves(dtype: torch.dtype, layout: str) -> None:
    """Every kept token bit by bit in its cell, every other cell as it was."""
    k, v = tokens(D, dtype), tokens(DV, dtype, seed=1)
    k_cache, v_cache = cache(D, dtype, layout), cache(DV, dtype, layout)
    append_kv(k, v, k_cache, v_cache, SLOTS, kv_layout=layout)
    for pool, rows in ((k_cache, k), (v_cache, v)):
        for slot in range(PAGES * PAGE):
            token = written().get(slot)
            want = torch.ones_like(rows[0]) if token is None else rows[token]
            assert torch.equal(cell(pool, slot, layout), want)


DESCALES: dict[str, Any] = {
    "float": lambda width: 0.25,
    "0-d": lambda width: torch.tensor(0.25),
    "1": lambda width: torch.tensor([0.25]),
    "per_head": lambda width: torch.tensor([0.25, 0.5]),
    "per_channel": lambda width: torch.arange(1.0, HEADS * width + 1).reshape(HEADS, width) / 8,
}


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("granularity", DESCALES)
@pytest.mark.parametrize("dtype", QUANTISED, ids=str)
def test_a_given_descale_divides(dtype: torch.dtype, granularity: str, layout: str) -> None:
    """stored = round(clamp(x / descale)), element by element."""
    k, v = tokens(D), tokens(DV, seed=1)
    descales = [DESCALES[granularity](width) for width in (D, DV)]
    k_cache, v_cache = cache(D, dtype, layout), cache(DV, dtype, layout)
    append_kv(k, v, k_cache, v_cache, SLOTS, kv_layout=layout, k_descale=descales[0], v_descale=descales[1])
    for pool, rows, descale in ((k_cache, k, descales[0]), (v_cache, v, descales[1])):
        scale = torch.as_tensor(descale)
        scale = scale[:, None] if granularity == "per_head" else scale
        for slot in range(PAGES * PAGE):
            token = written().get(slot)
            divided = torch.ones_like(rows[0]) if token is None else rows[token] / scale
            want = divided.round().to(dtype) if dtype == torch.int8 else divided.to(dtype)
            assert torch.equal(cell(pool, slot, layout).float(), want.float())


@pytest.mark.parametrize(
    ("dtype", "x", "want"),
    [
        (torch.float8_e4m3fn, [1e5, -1e5, math.inf, -math.inf, 448.0, 0.0], [448, -448, 448, -448, 448, 0]),
        (torch.float8_e5m2, [1e6, -1e6, math.inf, -math.inf, 57344.0, 0.0], [57344, -57344, 57344, -57344, 57344, 0]),
        (torch.int8, [1e5, -1e5, math.inf, -math.inf, -128.0, math.nan], [127, -128, 127, -128, -128, 0]),
        (torch.int8, [0.5, 1.5, 2.5, -0.5, -1.5, -2.5], [0, 2, 2, 0, -2, -2]),
        (torch.float8_e4m3fn, [17.0, 19.0, 1.0625, 1.1875, -17.0, -19.0], [16, 20, 1, 1.25, -16, -20]),
    ],
)
def test_numbers_are_clamped_and_rounded_half_to_even(dtype: torch.dtype, x: list[float], want: list[float]) -> None:
    """The format's whole range, never a wrap-around and never NaN out of a large number."""
    rows = torch.tensor(x).reshape(1, 1, -1)
    caches = [torch.zeros(1, 1, 1, len(x), dtype=dtype) for _ in "kv"]
    append_kv(rows, rows, *caches, torch.tensor([0]), k_descale=1.0, v_descale=1.0)
    assert caches[0].float().flatten().tolist() == want
    assert caches[1].float().flatten().tolist() == want


def test_nan_stays_nan_in_fp8() -> None:
    """A NaN is stored as the format's NaN."""
    rows = torch.full((1, 1, 2), math.nan)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        caches = [torch.zeros(1, 1, 1, 2, dtype=dtype) for _ in "kv"]
        append_kv(rows, rows, *caches, torch.tensor([0]), k_descale=1.0, v_descale=1.0)
        assert bool(caches[0].float().isnan().all())


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", QUANTISED, ids=str)
def test_per_token_head_writes_its_scales(dtype: torch.dtype, layout: str) -> None:
    """descale = max|x| / largest beside the codes; a head of zeros gets 1; other scales stay as they were."""
    k, v = tokens(D), tokens(DV, seed=1)
    k[2, 1] = 0.0
    k[3, 0] = 1e-45
    pools = cache(D, dtype, layout), cache(DV, dtype, layout)
    scales = [cache(1, torch.float32, layout, fill=-3.0)[..., 0] for _ in "kv"]
    append_kv(k, v, *pools, SLOTS, kv_layout=layout, k_descale=scales[0], v_descale=scales[1])
    for pool, rows, scale in zip(pools, (k, v), scales, strict=True):
        for slot in range(PAGES * PAGE):
            token = written().get(slot)
            if token is None:
                assert bool((cell(scale, slot, layout) == -3.0).all())
                assert bool((cell(pool, slot, layout).float() == 1.0).all())
                continue
            largest = rows[token].abs().amax(-1)
            want = largest / LIMITS[dtype]
            assert torch.equal(cell(scale, slot, layout), torch.where(want == 0, 1.0, want))
            read = cell(pool, slot, layout).float() * cell(scale, slot, layout)[:, None]
            step = {torch.int8: 0.5 / 127, torch.float8_e4m3fn: 2**-4, torch.float8_e5m2: 2**-3}[dtype]
            assert bool(((read - rows[token]).abs() <= largest[:, None] * step * 1.001 + 1e-44).all())


def test_k_and_v_may_have_formats_of_their_own() -> None:
    """A dense K beside an int8 V."""
    k, v = tokens(D), tokens(DV, seed=1)
    k_cache, v_cache = cache(D, torch.float32, "NHD"), cache(DV, torch.int8, "NHD")
    append_kv(k, v, k_cache, v_cache, SLOTS, v_descale=0.5)
    assert torch.equal(k_cache[2, 1], k[0])
    assert torch.equal(v_cache[2, 1], (v[0] / 0.5).round().to(torch.int8))


def test_strided_views_are_written_through() -> None:
    """Caches that are views of one buffer, and rows with a gap between them."""
    buffer = torch.zeros(PAGES, 2, PAGE, HEADS, D)
    k = tokens(2 * D)[..., ::2].requires_grad_()
    append_kv(k, k, buffer[:, 0], buffer[:, 1], SLOTS)
    assert torch.equal(buffer[3, 1, 2], k[3].detach())
    assert not buffer.requires_grad


@pytest.mark.parametrize("slots", [[-1] * 5, [-1, -1, 3, -1, -1], [0, -1, -1, -1, 5]])
def test_skipped_tokens_leave_no_trace(slots: list[int]) -> None:
    """All, most or some are skipped, NaN rows among them."""
    k = tokens(D)
    k[torch.tensor(slots) < 0] = math.nan
    pool, other = cache(D, torch.float32, "NHD"), cache(D, torch.float32, "NHD")
    append_kv(k, k, pool, other, torch.tensor(slots))
    want = cache(D, torch.float32, "NHD")
    for token, slot in enumerate(slots):
        if slot >= 0:
            want[slot // PAGE, slot % PAGE] = k[token]
    assert torch.equal(pool, want)


def test_no_tokens_and_no_pages() -> None:
    """Nothing to write is nothing written."""
    none = torch.zeros(0, HEADS, D)
    append_kv(none, none, cache(D, torch.float32, "NHD"), cache(D, torch.float32, "NHD"), SLOTS[:0])
    empty = torch.zeros(0, PAGE, HEADS, D)
    append_kv(none, none, empty, empty.clone(), SLOTS[:0])


def test_an_ambiguous_descale_needs_its_granularity() -> None:
    """[2, 2, 2] is one thing only; [pages, page, heads] = [heads, D] cannot happen, but a named misfit is refused."""
    k = tokens(D)
    pools = cache(D, torch.int8, "NHD"), cache(D, torch.int8, "NHD")
    append_kv(k, k, *pools, SLOTS, k_descale=torch.ones(HEADS), v_descale=1.0, k_granularity="per_head")
    with pytest.raises(RequestError, match="per_channel"):
        append_kv(k, k, *pools, SLOTS, k_descale=torch.ones(HEADS), v_descale=1.0, k_granularity="per_channel")


F32 = torch.float32


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kv_layout": "NDH"}, ["kv_layout", "NDH", "NHD"]),
        ({"k": tokens(D)[0]}, ["k:", "[2, 4]", "[tokens, Hkv, head_dim]"]),
        ({"k": tokens(D).to(torch.int32)}, ["k:", "int32"]),
        ({"k_cache": cache(D, F32, "NHD")[0]}, ["k_cache"]),
        ({"k_cache": cache(D + 1, F32, "NHD")}, ["k_cache", "width 4"]),
        ({"v_cache": torch.zeros(PAGES, PAGE, HEADS + 1, DV)}, ["v_cache", "2 heads"]),
        ({"v_cache": torch.zeros(PAGES + 1, PAGE, HEADS, DV)}, ["v_cache", "pages"]),
        ({"v": tokens(DV)[:3]}, ["v:", "5 tokens"]),
        ({"slot_mapping": SLOTS.int()}, ["slot_mapping", "int32", "int64"]),
        ({"slot_mapping": SLOTS[:3]}, ["slot_mapping", "[3]"]),
        ({"slot_mapping": torch.tensor([0, 1, 2, 3, 12])}, ["slot_mapping", "12", "11"]),
        ({"slot_mapping": torch.tensor([0, 1, 2, 3, -2])}, ["slot_mapping", "-2"]),
        ({"k_cache": cache(D, torch.bfloat16, "NHD")}, ["k_cache", "bfloat16", "cast"]),
        ({"k_descale": 0.5}, ["k_descale", "dense"]),
        ({"v_cache": cache(DV, torch.int8, "NHD")}, ["v_descale", "int8"]),
        ({"v_cache": cache(DV, torch.int8, "NHD"), "v_descale": torch.ones(3)}, ["v_descale", "(3,)", "per_head [2]"]),
        ({"v_cache": cache(DV, torch.int8, "NHD"), "v_descale": torch.ones(1, 2)}, ["v_descale", "(1, 2)"]),
        ({"v_cache": cache(DV, torch.int8, "NHD"), "v_descale": torch.ones(2).double()}, ["v_descale", "float64"]),
        ({"v_cache": cache(DV, torch.int32, "NHD")}, ["v_cache", "int32"]),
        ({"v_cache": cache(DV, torch.int8, "NHD"), "v_descale": "x"}, ["v_descale", "'x'", "a float"]),
        ({"v_cache": cache(DV, torch.int8, "NHD"), "v_descale": True}, ["v_descale", "True", "a float"]),
        ({"v_cache": cache(DV, torch.int8, "NHD"), "v_descale": torch.ones((), device="meta")}, ["v_descale", "cpu"]),
        ({"k": [[1.0]]}, ["k:", "list", "torch.Tensor"]),
        ({"slot_mapping": [0, 1, 2, 3, 4]}, ["slot_mapping", "list", "torch.Tensor"]),
        ({"v": tokens(DV).to("meta"), "v_cache": cache(DV, F32, "NHD").to("meta")}, ["v:", "meta", "cpu"]),
    ],
)
def test_an_illegal_call_writes_nothing(changes: dict[str, Any], text: list[str]) -> None:
    """The error names field, value and what is allowed; the other cache is untouched, though it was fine."""
    arguments: dict[str, Any] = {
        "k": tokens(D), "v": tokens(DV), "k_cache": cache(D, F32, "NHD"), "v_cache": cache(DV, F32, "NHD"),
        "slot_mapping": SLOTS, **changes,
    }  # fmt: skip
    before = {name: arguments[name].clone() for name in ("k_cache", "v_cache")}
    with pytest.raises(RequestError) as caught:
        append_kv(**arguments)
    for part in text:
        assert part in str(caught.value)
    for name, tensor in before.items():
        assert tensor.is_meta or torch.equal(arguments[name].float(), tensor.float())
