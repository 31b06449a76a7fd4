"""What paged_decode plans for decodes on an H200, worked out by the kernels' own code under the interpreter.

    TRITON_INTERPRET=1 python -m tests.backends.paged_decode_plans     prints JSON: {plans: name -> plan, turns: name -> items}

A plan is judged with every length known: `items` are counted, not estimated, and `best_time` is the least of the same model over
all numbers of splits that there is room for.
"""

from __future__ import annotations

import json
import math
import random
import sys
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from attn_backends.backends.paged_decode.configs import Config, Traits, config_for
from attn_backends.backends.paged_decode.launch import most_waves
from attn_backends.backends.paged_decode.schedule import MOST_SPLITS, STARTUP, find_item, turn_of

MULTIPROCESSORS = 132
BATCH_BLOCK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """One new token per sequence. stored: bytes of an element of K and one of V together."""

    lengths: tuple[int, ...]
    kv_heads: int = 8
    group: int = 4
    width: int = 128
    stored: int = 4


def _drawn(count: int, least: int, most: int) -> tuple[int, ...]:
    draw = random.Random(count)
    return tuple(draw.randint(least, most) for _ in range(count))


DECODES = {
    "1 of 32k": Decode(lengths=(32768,)),
    "1 of 32k, 8 bits": Decode(lengths=(32768,), stored=2),
    "16 of 4k": Decode(lengths=(4096,) * 16),
    "16 of 4k, 8 bits": Decode(lengths=(4096,) * 16, stored=2),
    "16 of 4k, V in 8 bits": Decode(lengths=(4096,) * 16, stored=3),
    "64 of 8k": Decode(lengths=(8192,) * 64),
    "64 of 8k, 8 bits": Decode(lengths=(8192,) * 64, stored=2),
    "64 of 4k, heads of 64": Decode(lengths=(4096,) * 64, width=64),
    "128 of 2k": Decode(lengths=(2048,) * 128),
    "1 of 19,220, heads of 64": Decode(lengths=(19220,), width=64, group=8),
    "139 of 890, one head": Decode(lengths=(890,) * 139, kv_heads=1, group=1),
    "19 of 7,680, heads of 64": Decode(lengths=(7680,) * 19, kv_heads=2, group=2, width=64),
    "65 of 12,800, heads of 64": Decode(lengths=(12800,) * 65, kv_heads=2, width=64),
    "1 of 600, heads of 64": Decode(lengths=(600,), width=64, group=2),
    "70 of 4k, just more than a wave": Decode(lengths=(4096,) * 70),
    "65 of 100 to 8,000, two heads": Decode(lengths=_drawn(65, 100, 8000), kv_heads=2),
    "33 of 100 to 8,000": Decode(lengths=_drawn(33, 100, 8000)),
    "200 of 100 to 8,000, one head": Decode(lengths=_drawn(200, 100, 8000), kv_heads=1),
    "33 of 7,000 to 8,000": Decode(lengths=_drawn(33, 7000, 8000)),
    "one of 32k among 31 of up to 500": Decode(lengths=(32768, *_drawn(31, 1, 500))),
    "empty": Decode(lengths=(0, 0)),
}


@triton.jit(do_not_specialize=("batch", "group", "longest_k", "kv_heads", "slots", "most_items"))
def per_split_of(
    found, lengths, batch, group, longest_k, kv_heads, slots, most_items, columns: tl.constexpr, room: tl.constexpr
):
    """Key tiles per split, as every program of a launch finds them."""
    _item, _sequence, _before, _tiles, per_split = find_item(
        0, lengths, lengths, batch, group, 1, longest_k, 0, kv_heads, slots, most_items,
        16, columns, room, False, False, False, True, False,
    )  # fmt: skip
    tl.store(found, per_split)


@triton.jit
def turn_at(found, many, few, kv_heads, slots):
    """Where a program's place in the grid leads."""
    place = tl.program_id(0)
    is_few, number = turn_of(place, many, few, kv_heads, slots)
    tl.store(found + 2 * place, is_few.to(tl.int32))
    tl.store(found + 2 * place + 1, number)


def turns_of(many: int, few: int, kv_heads: int, slots: int) -> list[tuple[int, int]]:
    """(whether it is a decode's, its number among its kind) of the item at every place, and at one behind them all."""
    found = torch.zeros(many + few + 1, 2, dtype=torch.int32)
    turn_at[(len(found),)](found, many, few, kv_heads, slots)
    return [(kind, number) for kind, number in found.tolist()]


def plan_of(decode: Decode) -> dict[str, Any]:
    """Tiles, splits of the longest sequence, programs with an item, and how good that is."""
    config = _config(decode)
    slots = config.programs * MULTIPROCESSORS
    units = len(decode.lengths) * decode.kv_heads
    most_items = most_waves(units, slots) * slots
    found = torch.zeros(1, dtype=torch.int32)
    per_split_of[(1,)](
        found, torch.tensor(decode.lengths, dtype=torch.int32), len(decode.lengths), decode.group, max(decode.lengths), decode.kv_heads,
        slots, most_items, columns=config.columns, room=BATCH_BLOCK,
    )  # fmt: skip
    steps = [max(1, -(-length // config.columns)) for length in decode.lengths]
    longest, per_split = max(steps), int(found[0])

    def items(per: int) -> int:
        return decode.kv_heads * sum(-(-one // per) for one in steps)

    def time(per: int) -> float:
        return math.ceil(items(per) / slots) * (per + float(STARTUP.value))

    room = {-(-longest // splits) for splits in range(1, min(longest, int(MOST_SPLITS.value)) + 1)}
    legal = {per for per in room if per == longest or decode.kv_heads * sum(steps) / per <= most_items}
    return {
        "tiles": [config.columns, config.warps, config.programs], "splits": -(-longest // per_split), "items": items(per_split),
        "waves": round(items(per_split) / slots, 2), "time": time(per_split), "best_time": min(map(time, legal)),
    }  # fmt: skip


def _config(decode: Decode) -> Config:
    traits = Traits.of(
        size=2, stored=decode.stored, widths=(decode.width, decode.width), rows=decode.group,
        units=len(decode.lengths) * decode.kv_heads, batch_invariant=False,
    )  # fmt: skip
    config = config_for(90, traits)
    if config is None:
        raise LookupError(traits)
    return config


TURNS = {  # items of prompts and of decodes per KV head, KV heads, slots
    "a chunk of a prompt and 63 decodes": (128, 63, 8, 264),
    "prompts alone": (40, 0, 8, 264),
    "decodes alone": (0, 40, 8, 264),
    "one of each": (1, 1, 1, 264),
    "more decodes than prompts": (3, 500, 2, 132),
    "many KV heads": (200, 100, 64, 264),
}


if __name__ == "__main__":
    answer = {
        "plans": {name: plan_of(decode) for name, decode in DECODES.items()},
        "turns": {name: turns_of(*turn) for name, turn in TURNS.items()},
    }
    json.dump(answer, sys.stdout)
