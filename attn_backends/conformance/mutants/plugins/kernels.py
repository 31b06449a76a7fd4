"""Backends that lie in this process: manifest and kernel of a small honest one, one of the two bent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import attn_backends
from attn_backends.call import Call
from attn_backends.capability import TABLE
from attn_backends.conformance.backend_in_use import items_of, registered, uncovered_by
from attn_backends.conformance.controls.declaring import Box, dense
from attn_backends.conformance.engine import run_item
from attn_backends.conformance.mutants.host import Victim
from attn_backends.conformance.mutants.plugins.lie import NOTHING, Told, lie
from attn_backends.conformance.mutants.seams import Seams
from attn_backends.conformance.outcome import Outcome
from attn_backends.matching import MatchIndex

Run = Callable[[Call], None]
HONEST = Victim(Seams()).run
_PLAIN = {
    "device": ["cpu"], "dtype": ["float32"], "out_dtype": ["same"], "layout": ["bshd"], "phase": ["prefill"],
    "attn_type": ["decoder"], "window": ["none"], "mask": ["none"], "bias": [False], "block_mask": ["none"],
    "scale": ["default"], "softcap": [False], "sinks": [False], "alibi": [False], "dropout": [False],
    "backward": [False], "grad_bias": [False], "grad_sinks": [False], "deterministic": [False],
    "batch_invariant": [False], "varlen": [False], "dense_lengths": [False], "strides": ["contiguous"],
}  # fmt: skip


def plain_manifest(name: str, **changes: Any) -> Box:
    """float32, dense, causal or not, LSE; `changes` are those of its one box."""
    return {"name": name, "version": "1.0.0", "capability": [{**dense(**_PLAIN), **changes}]}


def told(manifest: Box, run: Run | None, *, level: str = "quick", only: str = "") -> Told:
    """The first word of the suite that is no praise; `only`: of items with that word in their id alone."""
    with registered(manifest, run) as name:
        for item in items_of(name, level=level):
            if only not in item.id:
                continue
            result = run_item(name, item)
            if result.outcome.bad or result.outcome is Outcome.UNDERCLAIM:
                return Told(word=str(result.outcome), by=result.id, message=result.message)
    return NOTHING


@lie("DECLARE-1", "OVERCLAIM")
def head_dim_any_and_raises_at_72() -> Told:
    """Declares any head_dim; the kernel raises where the width is no multiple of 16."""

    def run(call: Call) -> None:
        if call.q.shape[-1] % 16:
            raise ValueError(f"head_dim {call.q.shape[-1]} is not supported")
        HONEST(call)

    return told(plain_manifest("lie_head_dim"), run)


@lie("REFUSE-2", "OVERCLAIM")
def groups_accepted_and_refused_by_the_kernel() -> Told:
    """The manifest takes grouped heads, and the kernel says NotImplementedError."""

    def run(call: Call) -> None:
        if call.q.shape[2] != call.k.shape[2]:
            raise NotImplementedError("grouped heads")
        HONEST(call)

    return told(plain_manifest("lie_groups"), run)


@lie("DECLARE-2", "UNDERCLAIM")
def softcap_served_and_not_declared() -> Told:
    """The kernel knows the softcap; the manifest does not say so."""
    return told(plain_manifest("lie_modest"), HONEST, level="full", only="probe-softcap/")


@lie("MASK-1", "FAIL")
def mask_declared_and_dropped() -> Told:
    """Declares bool masks, and the kernel never looks at one."""

    def run(call: Call) -> None:
        HONEST(dataclasses.replace(call, attn_mask=None))

    return told(plain_manifest("lie_mask", mask=["none", "bool"]), run, only="-bool")


@lie("REFUSE-1", "SILENT_WRONG")
def softcap_not_declared_and_let_through() -> Told:
    """A selector that never asks about the softcap, and a kernel that ignores it."""
    axis = next(index for index, row in enumerate(TABLE) if row.axis == "softcap")
    whole = MatchIndex.match

    def forgetful(index: MatchIndex, values: tuple[Any, ...]) -> Any:
        return whole(index, (*values[:axis], False, *values[axis + 1 :]))

    def run(call: Call) -> None:
        HONEST(dataclasses.replace(call, softcap=None))

    with patch.object(MatchIndex, "match", forgetful):
        return told(plain_manifest("lie_softcap"), run, only="refused-softcap/")


@lie("DECLARE-3", "UNCOVERED")
def packed_layout_that_nothing_reaches() -> Told:
    """Declares the packed layout and not varlen: no call can be packed."""
    with registered(plain_manifest("lie_unreachable", layout=["bshd", "thd"]), HONEST) as name:
        missing = uncovered_by(name)
    return Told(word="UNCOVERED", by=" ".join(missing[0])) if missing else NOTHING


@lie("EVIDENCE-1", "FAIL")
def another_backend_does_the_work() -> Told:
    """The kernel calls `attention` and lets the reference answer."""

    def run(call: Call) -> None:
        given: dict[str, Any] = {"causal": call.causal, "causal_alignment": call.causal_alignment}
        found = attn_backends.attention(call.q, call.k, call.v, backend="eager", return_lse=True, **given)
        call.out.copy_(found[0])
        if call.lse is not None:
            call.lse.copy_(found[1])

    return told(plain_manifest("lie_borrowed"), run, only="evidence/")


def run(call: Call) -> None:
    """The kernel of `another_conversion_than_declared`."""
    HONEST(call)


def conversions(call: Call) -> list[tuple[str, int]]:
    """What that kernel says it converted."""
    return [("repeat_kv", call.k.numel() * call.k.element_size())]


@lie("EVIDENCE-2", "FAIL")
def another_conversion_than_declared() -> Told:
    """Declares make_contiguous, and tells the ledger of repeat_kv."""
    manifest = plain_manifest("lie_converts", strides=["any"])
    return told({**manifest, "kernel": f"{__name__}:run", "converts": ["make_contiguous"]}, None, only="evidence/")


LIES = (
    head_dim_any_and_raises_at_72, groups_accepted_and_refused_by_the_kernel, softcap_served_and_not_declared,
    mask_declared_and_dropped, softcap_not_declared_and_let_through, packed_layout_that_nothing_reaches,
    another_backend_does_the_work, another_conversion_than_declared,
)  # fmt: skip
