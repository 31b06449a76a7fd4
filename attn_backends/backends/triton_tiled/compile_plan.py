"""What to compile: every shipped row once, or everything; each kernel once however many calls come to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import torch

from attn_backends.backends.triton_tiled.compile_calls import call_of
from attn_backends.backends.triton_tiled.compile_only import Launch, launches_of, target_of
from attn_backends.backends.triton_tiled.configs import DIRECTIONS, Config, configs

NVIDIA = {"sm_80": 80, "sm_89": 89, "sm_90": 90, "sm_100": 100, "sm_120": 120}
ARCHITECTURES = (*NVIDIA, "gfx942")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
WIDTHS = ((64, 64), (128, 128), (256, 256))
# From the hardest: the first that comes to a row is the row's sample.
SAMPLED = ("everything", "bias and dropout", "capped", "expanded", "window", "unaligned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One kernel to compile, and one of the calls that come to it; widths of (q and k, v)."""

    arch: str
    dtype: str
    widths: tuple[int, int]
    variant: str
    launch: Launch


def items(
    archs: Iterable[str], dtypes: Iterable[str], widths: Iterable[tuple[int, int]], variants: Iterable[str]
) -> Iterator[Item]:
    """Every kernel of every such call, each once."""
    seen = set()
    for arch, dtype, pair, variant in product(archs, dtypes, widths, variants):
        for launch in launches_of(call_of(variant, DTYPES[dtype], *pair), target_of(arch)):
            kernel = (arch, launch.direction, launch.identity)
            if kernel not in seen:
                seen.add(kernel)
                yield Item(arch=arch, dtype=dtype, widths=pair, variant=variant, launch=launch)


def sample(arch: str) -> list[Item]:
    """One kernel (two where a row splits) per shipped row, the rows that serve several architectures taking turns."""
    wanted = set(_turns(arch))
    found: dict[tuple[str, Config], list[Item]] = {}
    for item in items((arch,), ("bfloat16", "float32"), WIDTHS, SAMPLED):
        launch = item.launch
        if launch.config is None or (launch.direction, launch.config) not in wanted:
            continue
        mine = found.setdefault((launch.direction, launch.config), [])
        if not mine or (mine[0].variant, mine[0].widths, mine[0].dtype) == (item.variant, item.widths, item.dtype):
            mine.append(item)
    if missed := wanted - found.keys():
        raise LookupError(f"no call of the sample comes to these rows on {arch}: {missed}")
    return [item for mine in found.values() for item in mine]


def _turns(arch: str) -> Iterator[tuple[str, Config]]:
    """The rows whose turn it is on this architecture."""
    for direction in DIRECTIONS:
        for place, row in enumerate(configs()[direction]):
            served = [name for name, number in NVIDIA.items() if row.arch <= number <= row.last_arch]
            if served and served[place % len(served)] == arch:
                yield direction, row
