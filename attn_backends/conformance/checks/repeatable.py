"""Bits where a backend repeats itself, the tolerance where it does not.

Two calls that must not differ are compared to the last bit. Some honest kernels add up in another order at every run
(atomics in a backward), and then two equal calls differ too. So a difference first raises the question whether the call
repeats itself at all: if so, the difference is what it looks like. If not, and `deterministic` was not promised for the
call, that part of the answer has to be right within the tolerance instead: NaN, inf and gross deviations still fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from attn_backends.conformance.case import Case
from attn_backends.conformance.checks.check import Finding
from attn_backends.conformance.checks.comparing import bit_equal, same_bits

AGAIN = 8  # repetitions of a call before its parts count as repeatable

Parts = Mapping[str, torch.Tensor]


def unchanged(
    case: Case, want: Parts, got: Parts, what: str, *, again: Callable[[], Parts], within: Callable[[], Finding]
) -> Finding:
    """Whether the parts of `got` are those of `want`; `what` says what must not matter between the two.

    again: the call behind `want` once more; within: the tolerance's verdict on `got`
    """
    equal = bit_equal(got, want, what)
    if equal.ok or case.deterministic:
        return equal
    moving = _moving(want, [name for name in want if not same_bits(got[name], want[name])], again)
    still = {name: part for name, part in want.items() if name not in moving}
    equal = bit_equal(got, still, what)
    return equal if not equal.ok else within()


def _moving(first: Parts, names: list[str], again: Callable[[], Parts]) -> set[str]:
    """Those of the named parts that differ between equal calls."""
    moving: set[str] = set()
    for _ in range(AGAIN):
        other = again()
        moving |= {name for name in names if not same_bits(other[name], first[name])}
        if len(moving) == len(names):
            break
    return moving
