"""What the kernels are not compiled anew for. Triton compiles for every integer anew that is 1 or a multiple of 16.

Tuned kernels keep that for head widths and the strides of what is read and written in tiles: there it decides how wide
a load is. Portable ones are compiled for no number; they are told once whether memory is aligned (`ALIGNED`). What
lies in a tuple cannot be taken out of Triton's rule, so they get their strides as numbers that are neither (`coded`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import triton

LENGTHS_AND_COUNTS = (
    "num_q_heads", "num_kv_heads", "heads", "batches", "longest_q", "longest_k", "left", "right", "bottom_right",
    "dropout_seed", "dropout_threshold", "present", "has_d_lse",
)  # fmt: skip
READ_ONE_BY_ONE = (
    "sinks", "sink_parts", "slopes", "starts_q", "starts_k", "lengths_k", "tile_lists", "tile_counts", "visits"
)  # fmt: skip
_NUMBERS = (*LENGTHS_AND_COUNTS, "gqa_ratio", "head_dim", "head_dim_v")
_MASKS_AND_ROWS = (
    "mask", "blocks", "inner", "lse", "d_lse", "norms", "rests", "tops", "delta", "parts", *READ_ONE_BY_ONE
)  # fmt: skip
_TILES = ("q", "k", "v", "out", "d_out", "d_q", "d_k", "d_v")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One kernel compiled by three rules: for its numbers; for none of them, on aligned memory; on any memory."""

    tuned: Any
    aligned: Any
    anywhere: Any

    def member(self, portable: bool, aligned: bool) -> Any:
        """The kernel to launch; the portable ones with PORTABLE, ALIGNED and coded strides."""
        if not portable:
            return self.tuned
        return self.aligned if aligned else self.anywhere


def family(kernel: Any) -> Family:
    """The family of a kernel that was defined as the tuned one."""
    return Family(
        tuned=kernel,
        aligned=triton.jit(kernel.fn, do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_MASKS_AND_ROWS),
        anywhere=triton.jit(
            kernel.fn, do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_MASKS_AND_ROWS + _TILES
        ),
    )


def coded(numbers: Iterable[int]) -> tuple[int, ...]:
    """Numbers >= 0 as negative odd ones: never 1, never a multiple of 16. `tile.decoded` turns them back."""
    return tuple(~(2 * number) for number in numbers)
