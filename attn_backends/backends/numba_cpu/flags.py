"""What the compiler may do with floating-point numbers, and what a call asks for.

FAST: sums in any order and fused products, so that loops vectorise; NaN and infinity keep their meaning.
LARGEST: besides, NaN may be missed; for a row's maximum alone, whose row is NaN anyway by the difference to it.

The others are places in the array of whole numbers that the kernel gets, and in the one of float32 numbers.
"""

from __future__ import annotations

FAST = {"contract", "reassoc", "nsz", "arcp"}
LARGEST = {"nnan", "nsz"}

HALVES, PAGED, BIASED, MASKED, BLOCKED, INNER, SLOPED, CAPPED, SUNK, BOTTOM_RIGHT = range(10)
LEFT, RIGHT, BLOCK_Q, BLOCK_K, PAGE = range(10, 15)
NUMBERS = 15
DENSE, FLOAT16, BFLOAT16 = range(3)  # of HALVES

SCALE, CAP, INNER_SCALE = range(3)

# Columns of the task table.
(
    T_ENTRY_Q, T_FIRST_Q, T_SEQ_Q, T_ENTRY_K, T_FIRST_K, T_SEQ_K, T_SEQUENCE, T_KV_HEAD, T_FIRST_HEAD, T_HEADS,
    T_FIRST_ROW, T_ROWS,
) = range(12)  # fmt: skip
COLUMNS = 12
