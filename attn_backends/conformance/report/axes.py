"""The capability matrix: axis by axis, what became of the values that the cases of a run had.

Read from the ids of the items. An item whose id names no case (a lying plugin's, say) stands in no axis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attn_backends.conformance.case import Case
from attn_backends.conformance.item import parse_item
from attn_backends.conformance.outcome import Outcome
from attn_backends.conformance.record import RunRecord
from attn_backends.conformance.report.clauses import state_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One value of an axis. `served` counts passes, `refused` refusals of items with this value."""

    axis: str
    value: str
    passed: int
    refused: int
    failed: int
    not_run: int

    @property
    def state(self) -> str:
        """failed, pass, refused or not run. Refusals of a value that is served elsewhere are about another axis."""
        return state_of(
            {
                Outcome.FAIL: self.failed,
                Outcome.PASS: self.passed,
                Outcome.REFUSED: self.refused,
                Outcome.NOT_RUN: self.not_run,
            }
        )

    @property
    def title(self) -> str:
        """The cell in words."""
        counts = (
            ("passed", self.passed),
            ("failed", self.failed),
            ("refused", self.refused),
            ("not run", self.not_run),
        )
        return f"{self.axis} {self.value}: " + ", ".join(f"{count:,} {word}" for word, count in counts if count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis with the values that occurred."""

    name: str
    cells: tuple[Cell, ...]


def axes(record: RunRecord) -> list[Axis]:
    """Every axis that says something: more than one value, or the only value of one that is always shown."""
    found: dict[str, dict[str, Counter[Outcome]]] = {name: {} for name in READERS}
    for result in record.results:
        try:
            _check, case = parse_item(result.id)
        except ValueError:
            continue
        for name, value in _values(case):
            found[name].setdefault(value, Counter())[result.outcome] += 1
    made = [Axis(name=name, cells=tuple(_cells(name, values))) for name, values in found.items() if values]
    return [axis for axis in made if len(axis.cells) > 1 or axis.name in _ALWAYS]


def _values(case: Case) -> Iterator[tuple[str, str]]:
    for name, read in READERS.items():
        value = read(case)
        for one in (value,) if isinstance(value, str) else dict.fromkeys(value):
            yield name, one


def _cells(axis: str, values: dict[str, Counter[Outcome]]) -> Iterator[Cell]:
    for value in sorted(values, key=_natural):
        counts = values[value]
        yield Cell(
            axis=axis, value=value, passed=counts[Outcome.PASS], refused=counts[Outcome.REFUSED] + counts[Outcome.UNDERCLAIM],
            failed=sum(count for outcome, count in counts.items() if outcome.bad), not_run=counts[Outcome.NOT_RUN],
        )  # fmt: skip


def _natural(value: str) -> tuple[int, float, str]:
    """Dull values first, numbers as numbers, words by letter."""
    if value in _DULL:
        return (0, 0.0, value)
    try:
        return (1, float(value), "")
    except ValueError:
        return (2, 0.0, value)


def _flag(name: str) -> Callable[[Case], str]:
    return lambda case: "on" if getattr(case, name) else "off"


def _causal(case: Case) -> str:
    if not case.causal:
        return "off"
    return "top_left" if case.top_left else "bottom_right"


def _window(case: Case) -> str:
    if case.left == case.right == -1:
        return "none"
    return "left" if case.right == -1 else "two_sided"


def _lengths(case: Case) -> str:
    if case.seq_q == case.seq_k:
        return "Sq = Sk"
    return "Sq < Sk" if case.seq_q < case.seq_k else "Sq > Sk"


def _ratio(case: Case) -> str:
    return f"{case.q_heads / case.kv_heads:g}" if case.kv_heads else "none"


# Axis of the manifest (or a property of the case that shows faults) -> its value, or values, in a case.
READERS: dict[str, Callable[[Case], str | tuple[str, ...]]] = {
    "dtype": lambda case: case.dtype,
    "out_dtype": lambda case: case.out_dtype or "same",
    "kv_format": lambda case: (case.k_format, case.v_format),
    "q_format": lambda case: case.q_format,
    "scale_granularity": lambda case: case.granularity,
    "layout": lambda case: case.layout,
    "page_size": lambda case: "none" if case.page_size is None else str(case.page_size),
    "kv_layout": lambda case: "not paged" if case.page_size is None else case.kv_layout,
    "phase": lambda case: case.phase or "by shape",
    "attn_type": lambda case: case.attn_type,
    "head_dim": lambda case: str(case.head_dim),
    "head_dim_v": lambda case: str(case.head_dim_v),
    "gqa_ratio": _ratio,
    "lengths": _lengths,
    "ragged": _flag("ragged"),
    "causal": _causal,
    "window": _window,
    "mask": lambda case: case.mask,
    "block_mask": lambda case: "none" if case.block_mask is None else str(case.block_mask),
    "scale": lambda case: "default" if case.scale is None else "custom",
    "softcap": lambda case: "off" if case.softcap is None else "on",
    "sinks": _flag("sinks"),
    "alibi": _flag("alibi"),
    "dropout": lambda case: "on" if case.dropout else "off",
    "lse": _flag("lse"),
    "backward": _flag("grads"),
    "grad_bias": _flag("grad_bias"),
    "grad_sinks": _flag("grad_sinks"),
    "deterministic": _flag("deterministic"),
    "batch_invariant": _flag("batch_invariant"),
    "nan_safe": _flag("nan_safe"),
    "strides": lambda case: case.memory,
    "values": lambda case: case.values,
}
_ALWAYS = ("dtype", "layout", "head_dim")
_DULL = ("off", "none", "dense", "same", "default", "not paged", "contiguous", "by shape")
