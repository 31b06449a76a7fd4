"""Seams around the arithmetic: before, after, and how results are written. Defaults of `Seams`."""

from __future__ import annotations

import torch

from attn_backends.call import Call
from attn_backends.conformance.controls.places import Place, at_lse, at_queries


def entered(call: Call) -> None:
    """Before anything is read: every output is written once, so that packed rows of nobody are too."""
    call.out.zero_()
    if call.lse is not None:
        call.lse.fill_(float("-inf"))


def stored(call: Call, place: Place, out: torch.Tensor, lse: torch.Tensor) -> None:
    """Write one sequence's rows: out [Hq, Sq, Dv], lse [Hq, Sq]."""
    at_queries(call.out, call, place).copy_(out)
    if call.lse is not None:
        at_lse(call.lse, place).copy_(lse)


def left(call: Call) -> None:
    """After everything is written."""
