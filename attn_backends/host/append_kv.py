"""`append_kv`: write the K and V of new tokens into a paged cache, in place.

Token t goes to page slot_mapping[t] // page_size, cell slot_mapping[t] % page_size; slot -1 is skipped. A dense cache
stores x as it is; a quantised one stores

    round(clamp(x / descale))     int8: half to even, -128..127 (the whole range, since a given descale may need it)
    fp8(clamp(x / descale))       e4m3: -448..448, e5m2: -57344..57344, to nearest even by the cast

With `per_token_head` the descales are outputs: descale = max|x| over the token's head / largest (127 for int8, so
those codes are symmetric; 1 for a head of zeros) is written beside the codes. On a GPU one kernel does all of it
(fused_write.py), elsewhere and without triton torch does, to the same bits. Needs torch; imported by the public API.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from types import ModuleType

import torch

from attn_backends.capability import KV_LAYOUTS
from attn_backends.errors import RequestError
from attn_backends.quantization import RANGES, broadcast_scale, resolve_granularity

Descale = torch.Tensor | float | None
Granularity = tuple[str | None, str | None]  # the name given, and the name that breaks a tie
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def append_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    kv_layout: str = "NHD",
    k_descale: Descale = None,
    v_descale: Descale = None,
    k_granularity: str | None = None,
    v_granularity: str | None = None,
) -> None:
    """Store new tokens in the caches; nothing is written if anything is illegal.

    k, v: float [tokens, Hkv, D] and [tokens, Hkv, Dv], any strides
    k_cache, v_cache: [pages, page_size, Hkv, D | Dv] (`NHD`) or [pages, Hkv, page_size, D | Dv] (`HND`), any strides;
        the dtype of k and v or a wider float (dense), or float8_e4m3fn, float8_e5m2, int8 (with descales)
    slot_mapping: int64 [tokens], distinct slots, -1 = skip this token
    k_descale, v_descale: None (dense), or float32 `per_tensor` (a float too), `per_head` [Hkv], `per_channel`
        [Hkv, D]: read; `per_token_head` [pages, page_size, Hkv] (NHD), [pages, Hkv, page_size] (HND): written
    k_granularity, v_granularity: only where the shape of a descale fits two granularities; where v's is
        not given, k's breaks the tie

    The caches (and `per_token_head` descales) stay the caller's. Makes no device-to-host copy, hence slots outside
    the cache are refused on the CPU only; the GPU's kernel skips them. Raises RequestError.
    """
    if kv_layout not in KV_LAYOUTS:
        raise RequestError("kv_layout", kv_layout, "one of " + ", ".join(KV_LAYOUTS))
    named = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "slot_mapping": slot_mapping}
    for name, given in named.items():
        if not isinstance(given, torch.Tensor):
            raise RequestError(name, type(given).__name__, "a torch.Tensor")
    writes = [
        _plan("k", k, k_cache, k_descale, (k_granularity, None), kv_layout),
        _plan("v", v, v_cache, v_descale, (v_granularity, k_granularity), kv_layout),
    ]
    _check_slots(slot_mapping, writes)
    with torch.no_grad():
        if not _store_on_gpu(writes, slot_mapping):
            for write in writes:
                write.store(slot_mapping)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    """One checked tensor on its way into its cache: cache [pages, page, Hkv, D] as a view, whatever its layout."""

    rows: torch.Tensor  # [tokens, Hkv, D]
    cache: torch.Tensor
    descale: torch.Tensor | None = None  # float32; per_token_head as a view [pages, page, Hkv]
    granularity: str = "none"

    def store(self, slots: torch.Tensor) -> None:
        """Write every token whose slot is not -1."""
        if self.rows.shape[0] == 0 or self.cache.numel() == 0:
            return
        if self.descale is None:
            _put(self.cache, slots, self.rows.to(self.cache.dtype))
        elif self.granularity == "per_token_head":
            scales = _token_scales(self.rows, self.cache.dtype)
            _put(self.cache, slots, _quantise(self.rows, scales.unsqueeze(-1), self.cache.dtype))
            _put(self.descale, slots, scales)
        else:
            scale = broadcast_scale(self.descale, self.granularity).transpose(0, 1)
            _put(self.cache, slots, _quantise(self.rows, scale, self.cache.dtype))


def _store_on_gpu(writes: list[_Write], slots: torch.Tensor) -> bool:
    """Let one kernel write both; whether it did."""
    keys = writes[0]
    if (
        keys.rows.device.type != "cuda"
        or keys.rows.numel() == 0
        or keys.cache.numel() == 0
        or torch.compiler.is_compiling()
    ):
        return False
    fused = _kernel()
    if fused is None:
        return False
    targets = [
        fused.Target(rows=one.rows, cache=one.cache, descale=one.descale, granularity=one.granularity) for one in writes
    ]
    if not all(fused.takes(target) for target in targets):
        return False
    fused.write(*targets, slots)
    return True


@functools.cache
def _kernel() -> ModuleType | None:
    """`fused_write`; None without triton."""
    try:
        return importlib.import_module("attn_backends.host.fused_write")
    except ImportError:
        return None


def _token_scales(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float32 [tokens, Hkv]: the descale under which the largest number of each head is the largest code."""
    largest = rows.abs().amax(dim=-1).to(torch.float32)
    # A divisor from the host is not divided by on CUDA: torch multiplies by its reciprocal there, an ulp off at times.
    # https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cuda/BinaryDivTrueKernel.cu
    scales = largest / largest.new_full((), RANGES[_name(dtype)][1])
    return torch.where(scales == 0, 1.0, scales)


def _quantise(rows: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Codes of rows [tokens, Hkv, D] under a scale that broadcasts to them; NaN stays NaN, and is 0 in int8."""
    low, high = RANGES[_name(dtype)]
    exact = torch.promote_types(rows.dtype, torch.float32)
    scaled = (rows.to(exact) / scale.to(exact)).clamp(low, high)
    return scaled.nan_to_num(nan=0.0).round().to(dtype) if dtype == torch.int8 else scaled.to(dtype)


def _put(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """cache[page, cell] = row for every slot >= 0, without asking the device how many those are.

    A skipped token repeats the write of the first kept one; where none is kept, slot 0 gets its own content back.
    """
    page_size = cache.shape[1]
    if rows.element_size() == 1:  # fp8 has no scatter everywhere; bytes have
        cache, rows = cache.view(torch.uint8), rows.view(torch.uint8)
    kept = slots >= 0
    anchor = kept.to(torch.int64).argmax().reshape(1)
    anchor_slot = slots.index_select(0, anchor).clamp(min=0)
    anchor_row = torch.where(kept.any(), rows.index_select(0, anchor), cache[0, 0])
    slots = torch.where(kept, slots, anchor_slot)
    rows = torch.where(kept.reshape(-1, *(1,) * (rows.dim() - 1)), rows, anchor_row)
    cache.index_put_((slots.div(page_size, rounding_mode="floor"), slots.remainder(page_size)), rows)


def _plan(
    name: str, rows: torch.Tensor, cache: torch.Tensor, descale: Descale, granularity: Granularity, kv_layout: str
) -> _Write:
    """Check one tensor against its cache and its descale."""
    if rows.dim() != 3 or rows.dtype not in _FLOATS:
        raise RequestError(name, _facts(rows), "a float tensor [tokens, Hkv, head_dim]")
    if cache.dim() != 4:
        raise RequestError(f"{name}_cache", _facts(cache), f"4 dims, {kv_layout}")
    pages = cache if kv_layout == "NHD" else cache.transpose(1, 2)
    if pages.shape[2:] != rows.shape[1:]:
        wanted = f"{kv_layout} with {rows.shape[1]} heads of width {rows.shape[2]}, as {name} has"
        raise RequestError(f"{name}_cache", _facts(cache), wanted)
    if cache.device != rows.device:
        raise RequestError(f"{name}_cache", f"a tensor on {cache.device}", f"on {rows.device}, where {name} is")
    if _name(cache.dtype) not in RANGES:
        return _plan_dense(name, rows, pages, descale, granularity)
    return _plan_quantised(name, rows, pages, descale, granularity, kv_layout)


def _plan_dense(
    name: str, rows: torch.Tensor, pages: torch.Tensor, descale: Descale, granularity: Granularity
) -> _Write:
    if descale is not None or granularity[0] not in (None, "none"):
        raise RequestError(f"{name}_descale", "a descale", f"none: the {name} cache is dense ({pages.dtype})")
    if pages.dtype not in _FLOATS or torch.promote_types(rows.dtype, pages.dtype) != pages.dtype:
        legal = f"{rows.dtype}, a wider float, or one of {', '.join(RANGES)} with a descale"
        raise RequestError(f"{name}_cache", str(pages.dtype), legal, hint=f"cast {name} first: no cast here is silent")
    return _Write(rows=rows, cache=pages)


def _plan_quantised(
    name: str, rows: torch.Tensor, pages: torch.Tensor, descale: Descale, granularity: Granularity, kv_layout: str
) -> _Write:
    field = f"{name}_descale"
    if descale is None:
        raise RequestError(field, None, f"a float32 descale, since the {name} cache holds {pages.dtype}")
    if not isinstance(descale, torch.Tensor):
        if type(descale) not in (int, float):
            raise RequestError(field, descale, "a float, or a float32 tensor")
        descale = torch.full((), float(descale), dtype=torch.float32, device=rows.device)
    if descale.numel() == 1 and descale.dim() < 2 and descale.device.type == "cpu":  # one number may lie on the host
        descale = descale.to(rows.device)
    if descale.dtype != torch.float32 or descale.device != rows.device:
        raise RequestError(field, _facts(descale), f"a float or a float32 tensor on {rows.device}")
    resolved = resolve_granularity(
        tuple(descale.shape), field=field, heads=rows.shape[1], head_dim=rows.shape[2], batch=None,
        paged=(pages.shape[0], pages.shape[1]), kv_layout=kv_layout, explicit=granularity[0], tie_break=granularity[1],
    )  # fmt: skip
    if resolved == "per_token_head" and kv_layout == "HND":
        descale = descale.transpose(1, 2)
    return _Write(rows=rows, cache=pages, descale=descale, granularity=resolved)


def _check_slots(slots: torch.Tensor, writes: list[_Write]) -> None:
    keys, values = writes
    if values.rows.device != keys.rows.device:
        raise RequestError("v", f"a tensor on {values.rows.device}", f"on {keys.rows.device}, where k is")
    tokens = keys.rows.shape[0]
    if values.rows.shape[0] != tokens or values.rows.shape[1] != keys.rows.shape[1]:
        raise RequestError("v", _facts(values.rows), f"{tokens} tokens of {keys.rows.shape[1]} heads, as k has")
    if values.cache.shape[:2] != keys.cache.shape[:2]:
        raise RequestError("v_cache", _facts(values.cache), "as many pages of the same size as k_cache")
    if slots.dtype != torch.int64 or tuple(slots.shape) != (tokens,):
        raise RequestError("slot_mapping", _facts(slots), f"int64 [{tokens}], one slot per token")
    if slots.device != keys.rows.device:
        raise RequestError("slot_mapping", f"a tensor on {slots.device}", f"on {keys.rows.device}")
    cells = keys.cache.shape[0] * keys.cache.shape[1]
    if slots.device.type == "cpu" and tokens and not -1 <= int(slots.min()) <= int(slots.max()) < cells:
        raise RequestError("slot_mapping", [int(slots.min()), int(slots.max())], f"-1, or 0 to {cells - 1}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _facts(tensor: torch.Tensor) -> str:
    return f"{_name(tensor.dtype)} {list(tensor.shape)}"
