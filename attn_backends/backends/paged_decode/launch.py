"""Launching the kernels, one or two, for one call: a grid that no length changes, partial results in memory of its own."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import triton.language as tl

from attn_backends.backends.paged_decode.attend import attend_split
from attn_backends.backends.paged_decode.combine import combine_splits
from attn_backends.backends.paged_decode.configs import Config, Traits, config_for, padded, parts
from attn_backends.backends.paged_decode.counters import counters_for
from attn_backends.backends.paged_decode.operands import Operands, Sizes
from attn_backends.backends.paged_decode.schedule import INVARIANT_SPLITS, MOST_SPLITS

if TYPE_CHECKING:
    from attn_backends.call import Call

MOST_LENGTHS = 1024  # that a program reads at a time to plan
_TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


def launch(call: Call, operands: Operands, config: Config | None = None, *, merge: bool = True) -> None:
    """Write call.out and, where it is given, call.lse.

    config: None for the one that is shipped
    merge: whether the splits are put together by the last of them to end, by no second kernel, where that pays
    """
    sizes, flags = operands.sizes, operands.flags
    if config is None:
        config = chosen(call, sizes)
    slots = config.programs * multiprocessors(call.q.device)
    tiles = most_tiles(sizes, config)
    most_items = most_waves(tiles * sizes.kv_heads, slots) * slots
    items = most_programs(sizes, config, tiles, most_items, flags["INVARIANT"])
    if flags["PACKED_Q"]:
        items += 1  # the last program never has one: it forgets the tiles that there are none of
    programs = items * sizes.kv_heads
    width_v = padded(sizes.width_v)
    early = architecture(call.q.device) >= _EARLY_LAUNCH
    partial_out, partial_lse = _room(call.q, programs * config.rows, width_v)
    options = _options(call, operands, config)
    rows = min(config.rows, sizes.longest_q * sizes.group)
    merged, at_a_time = merging(rows, options) if merge else (0, 0)
    facts = (
        counters_for(call.q.device, tiles * sizes.kv_heads)
        if merged
        else torch.empty(tiles * 4, dtype=torch.int32, device=call.q.device)
    )
    q_strides, k_strides, v_strides, *other_strides = operands.strides
    v, width_of_v = call.v, sizes.width_v
    if options["V_PAIRS"]:
        v, width_of_v = call.v.view(torch.uint16), sizes.width_v // 2
        v_strides = (*(step // 2 for step in v_strides[:3]), 1)
    attend_split[(programs,)](
        call.q, call.k, v, call.out, call.lse, partial_out, partial_lse, facts, call.block_table, call.cu_seqlens_q,
        call.seq_lens, call.k_descale, call.v_descale, call.sinks, call.alibi_slopes,
        q_strides, k_strides, v_strides, *other_strides,
        *sizes[:6], width_of_v, sizes.num_pages, *operands.scaling, *operands.band, _reach(operands, config), slots, most_items, tiles,
        EARLY=early and not merged, MERGE_ROWS=merged, MERGE_SPLITS=at_a_time, **options,
    )  # fmt: skip
    if merged:
        return
    combined = combined_rows(rows, tiles * sizes.kv_heads, multiprocessors(call.q.device), invariant=flags["INVARIANT"])
    combine_splits[(tiles * sizes.kv_heads, -(-rows // combined))](
        partial_out, partial_lse, facts, call.out, call.lse, call.sinks, call.cu_seqlens_q, *operands.strides[3:5],
        sizes.kv_heads, sizes.group, sizes.longest_q, sizes.width_v,
        BLOCK_M=config.rows, BLOCK_DV=width_v, ROWS=combined, AT_A_TIME=_combined_at_a_time(combined, width_v),
        PACKED_Q=flags["PACKED_Q"], SINKS=flags["SINKS"], STORE_LSE=flags["STORE_LSE"], EARLY=early, launch_pdl=early, num_warps=_COMBINING_WARPS,
    )  # fmt: skip


_COMBINING_WARPS = 4
_MOST_COMBINED_ROWS = 16  # of a tile, by one program
_LEAST_COMBINED_ROWS = 4  # one for every warp
_MOST_COMBINED_AT_A_TIME = 16  # splits
_MOST_MERGED_ROWS = 16
_MOST_AT_A_TIME = 8  # splits; more took registers that the loop over keys then has fewer programs for
_MERGED_AT_A_TIME = 2048  # partial results of a warp that merges: 64 registers
_EARLY_LAUNCH = 90  # the first architecture on which a kernel may start before the one it waits for has ended


def _room(q: torch.Tensor, rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for what the programs leave: rows of float32 [rows, width] with their LSE."""
    return (
        torch.empty(rows * width, dtype=torch.float32, device=q.device),
        torch.empty(rows, dtype=torch.float32, device=q.device),
    )


def merging(rows: int, options: dict[str, Any]) -> tuple[int, int]:
    """(rows as a power of two, splits at a time) for the last split of a tile to merge them all; (0, 0) where it does not pay.

    That is for tiles of few rows, which one program reads in a few steps. Not where sums must be those of any batch, some of
    which have tiles of more rows.
    """
    rows = 1 << (rows - 1).bit_length()
    splits = min(_MOST_AT_A_TIME, _MERGED_AT_A_TIME * options["num_warps"] // (rows * options["BLOCK_DV"]))
    if options["INVARIANT"] or rows > _MOST_MERGED_ROWS or not splits:
        return 0, 0
    return rows, splits


def combined_rows(rows: int, units: int, processors: int, *, invariant: bool) -> int:
    """Rows of a tile that one program of the second kernel puts together: fewer for few tiles, to have a program per processor.

    How many splits are added up at a time follows from it: where sums must be those of any batch it is always the same.
    """
    combined = _MOST_COMBINED_ROWS
    while not invariant and combined > _LEAST_COMBINED_ROWS and units * -(-rows // combined) < processors:
        combined //= 2
    return combined


def _combined_at_a_time(combined: int, width: int) -> int:
    """Splits whose rows of float32 are in registers together."""
    most = _COMBINING_WARPS * _MERGED_AT_A_TIME // (combined * width)
    return max(1, min(most, _MOST_COMBINED_AT_A_TIME))


def chosen(call: Call, sizes: Sizes) -> Config:
    """The shipped configuration for this call on its device."""
    traits = Traits.of(
        size=call.q.element_size(), stored=call.k.element_size() + call.v.element_size(),
        widths=(sizes.width, sizes.width_v), rows=sizes.longest_q * sizes.group, units=sizes.batch * sizes.kv_heads,
        batch_invariant=call.batch_invariant,
    )  # fmt: skip
    config = config_for(architecture(call.q.device), traits)
    if config is None:
        raise LookupError(f"no tiles for {traits}: `limits.check` refuses such calls")
    return config


def most_tiles(sizes: Sizes, config: Config) -> int:
    """Query tiles of a KV head, over all sequences, that any lengths of this call can make."""
    most = -(-sizes.longest_q * sizes.group // config.rows)
    return min(sizes.batch * most, sizes.total_q * sizes.group // config.rows + sizes.batch)


def most_waves(units: int, slots: int) -> int:
    """Waves of programs up to which spans are split: more find a better fit, but each is room for programs without an item.

    units: query tiles times KV heads. Few of them can be cut to fit one wave; slightly more than one wave holds need a third, or
    the second would be nearly empty.
    """
    if units * _PARTS_OF_A_UNIT <= slots:
        return 1
    return 3 if slots < units <= 2 * slots else 2


_PARTS_OF_A_UNIT = 3  # at least, for a wave to be filled well


def most_programs(sizes: Sizes, config: Config, tiles: int, most_items: int, invariant: bool) -> int:
    """Items of a KV head that any lengths of this call can make."""
    steps = -(-sizes.longest_k // config.columns) + 1
    if invariant:
        return tiles * min(int(INVARIANT_SPLITS.value), steps)
    return min(tiles * min(int(MOST_SPLITS.value), steps), tiles + most_items // sizes.kv_heads + 1)


@cache
def architecture(device: torch.device) -> int:
    """Compute capability as major * 10 + minor; 0 without a GPU (the interpreter)."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


@cache
def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a device; few without one, for the interpreter."""
    if device.type != "cuda":
        return 4
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def _reach(operands: Operands, config: Config) -> int:
    """Keys that the window of a query tile covers, with its queries where it has a right limit."""
    left, right = operands.band
    tokens = (config.rows - 1) // operands.sizes.group + 2
    return left + right + tokens if operands.flags["RIGHT"] else left


def _options(call: Call, operands: Operands, config: Config) -> dict[str, Any]:
    sizes, flags = operands.sizes, operands.flags
    (width, rest), width_v = parts(sizes.width), padded(sizes.width_v)
    qk_type, pv_type = _product_type(call.q, call.k), _product_type(call.q, call.v)
    pairs = _pairs(call)
    narrow = qk_type is torch.float16 and (call.q.dtype is not torch.float16 or flags["K_SCALE"] == "channel")
    return {
        **flags,
        "BLOCK_M": config.rows,
        "BLOCK_N": config.columns,
        "BLOCK_D": width,
        "BLOCK_R": rest,
        "V_IN_K": rest > 0 and _is_in_k(call, width),
        "BLOCK_DV": width_v,
        "BATCH_BLOCK": min(MOST_LENGTHS, max(16, 1 << (sizes.batch - 1).bit_length())),
        "INDEX": _index(operands),
        "ROWS_ALIKE": operands.strides[1][:2] == operands.strides[2][:2],
        "PADDED_D": width + rest != sizes.width,
        "PADDED_DV": width_v != sizes.width_v,
        "QK_TYPE": _TYPES[qk_type],
        "PV_TYPE": _TYPES[pv_type],
        "PRECISION": "tf32x3" if call.q.dtype is torch.float32 else "ieee",
        "POSITIVE": operands.scaling[0] >= _LEAST_LATE,
        "NORMALISE_Q": narrow,
        "V_PAIRS": "" if config.rows >= _WARP_GROUP else pairs,
        "FEW_PAIRS": pairs,
        "HARDWARE": architecture(call.q.device) >= 89,
        "HEADROOM": 14.0 if pv_type is torch.float16 else 0.0,
        "IN_REGISTERS": config.registers and not rest,
        "num_warps": config.warps,
        "num_stages": config.stages,
        **({"maxnreg": config.maxnreg} if config.maxnreg else {}),
    }


# The least scale that is applied to products late, behind their maximum: hidden ones are -inf there, and -inf times 0 is NaN.
_LEAST_LATE = 2.0**-100


def _index(operands: Operands) -> Any:
    """32 bits where they hold the offset of every key in both caches."""
    sizes = operands.sizes
    last = [(sizes.num_pages - 1) * page + (sizes.page_size - 1) * cell for page, cell, *_ in operands.strides[1:3]]
    return tl.int32 if max(last) < 1 << 31 else tl.int64


def _product_type(q: torch.Tensor, stored: torch.Tensor) -> torch.dtype:
    """What q, or p, and a stored tensor are multiplied in: a quantised one in float16, unless q is float32."""
    return torch.float16 if stored.element_size() == 1 and q.dtype is not torch.float32 else q.dtype


def _is_in_k(call: Call, width: int) -> bool:
    """Whether V is the first `width` columns of K, in the same memory and not scaled: a latent cache."""
    k, v = call.k, call.v
    same = v.data_ptr() == k.data_ptr() and v.stride() == k.stride() and v.dtype == k.dtype and v.element_size() > 1
    return same and v.shape[-1] == width and v.shape[:-1] == k.shape[:-1]


def _pairs(call: Call) -> str:
    """The format of V where its bytes may be read in twos and are multiplied in float16; else nothing."""
    v = call.v
    even = v.stride(-1) == 1 and not any(step % 2 for step in v.stride()[:-1]) and v.shape[-1] % 2 == 0
    if v.element_size() > 1 or not even or v.data_ptr() % 2 or call.q.dtype is torch.float32:
        return ""
    return _SHORT[v.dtype]


# Rows from which on a product is that of four warps together. It transposes by itself, and takes V whole: on sm_90 two
# products with halves of V read astray.
_WARP_GROUP = 64
_SHORT = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2", torch.int8: "int8"}
