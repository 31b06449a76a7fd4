"""The factors of a case and their options: what generation may choose, per box and level. No torch here.

The first option of a factor is the plain one. Options that a box does not admit fall away later; here stands only what
is worth trying: nothing that is a multiple of a tile, lengths that differ both ways, features at values that show.
"""

from __future__ import annotations

from typing import Any

from attn_backends import capability as table
from attn_backends.box import Box
from attn_backends.conformance.case import MEMORIES, VALUES

Changes = dict[str, Any]
Factors = dict[str, list[Changes]]

NASTY: tuple[Changes, ...] = (
    {"dtype": "float16", "seq_q": 129, "seq_k": 65, "causal": True, "softcap": 30.0},
    {"dtype": "bfloat16", "seq_q": 17, "seq_k": 200, "causal": True, "left": 16},
    {"dtype": "bfloat16", "seq_q": 33, "seq_k": 33, "causal": True, "ragged": True},
    {"dtype": "float16", "seq_q": 1, "seq_k": 77, "causal": True, "memory": "row_padded"},
)
_WIDTHS = (40, 64, 33, 128, 80, 24, 16, 8, 192, 256, 1, 512, 576)
_LENGTHS = ((17, 33), (129, 65), (17, 200), (1, 77), (33, 33), (65, 129), (0, 9), (9, 0), (5, 1), (1, 1), (64, 128))
_DIAGONALS: tuple[Changes, ...] = (
    {}, {"causal": True}, {"causal": True, "top_left": True}, {"causal": True, "left": 16}, {"left": 5, "right": 3},
    {"left": 0, "causal": True}, {"right": 2}, {"left": 7}, {"left": 5, "right": 3, "top_left": True},
    {"causal": True, "left": 7, "right": 2, "top_left": True}, {"left": 0, "right": 0},
)  # fmt: skip
_LONGEST = 1100  # a declared length that is still run at every level
_HEADS = ((4, 2), (2, 2), (3, 1), (6, 2), (8, 1), (7, 1))  # query heads, KV heads
_MASKS = (("none", 4), ("bool", 4), ("bias", 4), ("bool", 2), ("bias", 2), ("bool", 3), ("bias", 3))


def factors(box: Box, level: str) -> Factors:
    """Every factor with its options for a box; fewer at `quick`."""
    some = {"quick": 4, "full": 7, "deep": 99}[level]
    found: Factors = {
        "dtype": [{"dtype": dtype} for dtype in table.DTYPES],
        "layout": [{"layout": layout} for layout in table.LAYOUTS],
        "ragged": [{}, {"ragged": True}],
        "pages": _pages(box, some),
        "formats": _formats(),
        "granularity": _granularities(),
        "heads": _heads(box, some),
        "width": [{"head_dim": width, "head_dim_v": width} for width in _widths(box, "head_dim")],
        "width_v": [{}, *({"head_dim_v": width} for width in _widths(box, "head_dim_v"))],
        "lengths": [{"seq_q": q, "seq_k": k} for q, k in (*_LENGTHS, *_declared_lengths(box))],
        "diagonal": list(_DIAGONALS[: 2 * some]),
        "softcap": [{}, {"softcap": 2.0}, {"softcap": 30.0}],
        "scale": [{}, {"scale": 0.3}, {"scale": -0.2}, {"scale": 0.0}],
        "mask": [{"mask": word, "mask_dims": dims} for word, dims in _MASKS][: some + 1],
        "blocks": [
            {},
            {"block_mask": 16},
            {"block_mask": 5, "block_mask_k": 12},
            {"block_mask": 5},
            {"block_mask": 64},
            {"block_mask": 128},
            {"block_mask": 64, "block_mask_k": 128},
        ],
        "grads": [{}, {"grads": True, "grad_bias": True, "grad_sinks": True}, {"grads": True}],
        "lse": [{}, {"lse": False}],
        "phase": [{}, *({"phase": word} for word in table.PHASES)],
        "attn_type": [{}, *({"attn_type": word} for word in table.ATTN_TYPES[1:])],
        "out_dtype": [{}, *({"out_dtype": dtype} for dtype in table.DTYPES[:4])],
        "memory": [{"memory": memory} for memory in MEMORIES],
        "values": [{"values": word} for word in VALUES],
        "seed": [{}, {"seed": 1}],
    }
    for name in ("sinks", "alibi", "deterministic", "batch_invariant", "nan_safe"):
        found[name] = [{}, {name: True}]
    found["dropout"] = [{}, {"dropout": 0.3}]
    return found


def fewest(options: dict[str, list[Changes]], level: str) -> dict[str, list[Changes]]:
    """At `quick`, the first options of each factor: admitted ones that pairs are made of."""
    most = {"quick": 3, "full": 5, "deep": 99}[level]
    return {name: few[:most] for name, few in options.items()}


def _pages(box: Box, some: int) -> list[Changes]:
    sizes = [size for size in (*_bounds(box, "page_size"), 16, 5, 64, 12, 256, 1) if 0 < size <= 1024]
    paged = [
        {"page_size": size, "kv_layout": layout} for size in dict.fromkeys(sizes) for layout in table.KV_LAYOUTS
    ]  # fmt: skip
    return [{}, *paged[: 3 * some]]


def _declared_lengths(box: Box) -> list[tuple[int, int]]:
    """For a box that takes lengths in steps, long ones alone or a few: the shortest of those, equal and not."""
    q, k = (_shortest(box.raw.get(part, box.raw.get("seq_len"))) for part in ("seq_q", "seq_k"))
    return [(first, second) for first in q or (17, 1) for second in k or (33,)] if q or k else []


def _shortest(raw: Any) -> list[int]:
    """The two least numbers of a set or range that the usual lengths may all miss; none of any other."""
    if isinstance(raw, dict):
        least, step = int(raw.get("min") or 1), int(raw.get("multiple_of") or raw.get("mod") or 1)
        first = least + (int(raw.get("rest") or 0) - least) % step
        numbers = [first, first + step] if step > 1 or least > 1 else []
    else:
        numbers = sorted(number for number in raw if isinstance(number, int)) if isinstance(raw, list) else []
    return [number for number in numbers if 0 < number <= _LONGEST][:2]


def _heads(box: Box, some: int) -> list[Changes]:
    """The usual ones, and some of each declared ratio that they do not have."""
    usual = _HEADS[:some]
    ratios = {q // kv for q, kv in usual}
    declared = [(2 * ratio, 2) for ratio in _bounds(box, "gqa_ratio") if ratio not in ratios]
    return [{"q_heads": q, "kv_heads": kv} for q, kv in (*usual, *declared[:some])]


def _formats() -> list[Changes]:
    """Both dense, both of one format, one dense beside one that is not, two different ones."""
    same = [{"k_format": word, "v_format": word} for word in table.FORMATS]
    quantised = table.FORMATS[1:]
    mixed = [{"k_format": "dense", "v_format": word} for word in quantised]
    mixed += [{"k_format": word, "v_format": "dense"} for word in quantised]
    return [*same, *mixed, {"k_format": quantised[0], "v_format": quantised[2]}]


def _granularities() -> list[Changes]:
    """Each by itself, and beside tensors of one format, since dense ones have no scale."""
    words = table.GRANULARITIES[1:]
    quantised = [{"k_format": fmt, "v_format": fmt} for fmt in table.FORMATS[1:]]
    apart = {"granularity": "per_channel", "granularity_v": "per_token_head"}  # of K and of V, each its own
    return [
        *({"granularity": word} for word in words), *({"granularity": w, **f} for f in quantised for w in words),
        *({**apart, **f} for f in quantised),
    ]  # fmt: skip


def _widths(box: Box, axis: str) -> list[int]:
    return list(dict.fromkeys([*_WIDTHS[:3], *_bounds(box, axis), *_WIDTHS[3:]]))


def _bounds(box: Box, axis: str) -> list[int]:
    """The corners and neighbours of a declared range or set of numbers that are small enough to run."""
    raw = box.raw.get(axis)
    if isinstance(raw, dict):
        step = int(raw.get("multiple_of") or raw.get("mod") or 1)
        edges = [raw[key] for key in ("max", "min") if key in raw]
        numbers = [edge + shift for edge in edges for shift in (0, -step, step)]
    else:
        numbers = list(raw) if isinstance(raw, list) else [raw]
    return [number for number in numbers if isinstance(number, int) and 0 < number <= 576]
