"""When a pipeline's work runs: a schedule of copies, matrix products and softmaxes on three units, clock by clock.

A step of a query tile is S (scores), E (their softmax) and P (weights times V). One unit does all products, one all
exponentials, one all copies; each takes what is ready first. What must wait for what:

    serial      S of a step for P of the step before
    double S    S for E of the step before, so that P of that step runs under this step's E; where another warp issues
                the products (tensor memory), S only for its buffer, two steps back
    always      S for K, P for E and V; K and V for a free buffer

Time without overlap is Tm + Te per step, of products and exponentials; no schedule beats max(Tm, Te). Latencies, barriers
and other instructions are not in the model: it says what is possible, not what is reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attn_backends.pipeline.chip import Chip
from attn_backends.pipeline.plan import Plan

MATRIX, SOFTMAX, COPY = "tensor core", "softmax", "copies"
UNITS = (MATRIX, SOFTMAX, COPY)
UNIT_OF = {"S": MATRIX, "P": MATRIX, "E": SOFTMAX, "K": COPY, "V": COPY}
STEPS = 8

Key = tuple[str, int, int]  # kind, query tile (0 for copies), step


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A piece of work, from clock `start` to clock `end`."""

    kind: str
    tile: int
    step: int
    start: float
    end: float

    @property
    def unit(self) -> str:
        """What does it."""
        return UNIT_OF[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A schedule; `work` is the multiply-adds in it."""

    plan: Plan
    chip: Chip
    tasks: tuple[Task, ...]
    work: float

    @property
    def clocks(self) -> float:
        """Until the last product is done."""
        return max(task.end for task in self.tasks)

    def busy(self, unit: str) -> float:
        """Clocks that a unit works."""
        return sum(task.end - task.start for task in self.tasks if task.unit == unit)

    @property
    def overlap(self) -> float:
        """How many times as fast as products and softmaxes one after the other."""
        return (self.busy(MATRIX) + self.busy(SOFTMAX)) / self.clocks

    @property
    def bound(self) -> float:
        """The same of a schedule that hides the shorter of the two completely."""
        return (self.busy(MATRIX) + self.busy(SOFTMAX)) / max(self.busy(MATRIX), self.busy(SOFTMAX))

    @property
    def rate(self) -> float:
        """Share of the tensor cores' peak."""
        return self.busy(MATRIX) / self.clocks


def timeline(plan: Plan, chip: Chip, lengths: tuple[int, ...] | None = None) -> Timeline:
    """The schedule of one block of threads.

    lengths: steps of every query tile, which may differ under a diagonal; by default `STEPS` of each.
    """
    steps = lengths or (STEPS,) * plan.q_tiles
    if len(steps) != plan.q_tiles or min(steps) < 1:
        raise ValueError(f"a plan of {plan.q_tiles} query tiles wants as many lengths of at least 1, got {steps}")
    spans = _clocks(plan, chip)
    waiting = {key: tuple(_needs(key, plan, chip, steps)) for key in _all(steps)}
    free = dict.fromkeys(UNITS, 0.0)
    done: dict[Key, Task] = {}
    while waiting:
        ready = {
            key: max([free[UNIT_OF[key[0]]], *(done[need].end for need in needs)])
            for key, needs in waiting.items()
            if all(need in done for need in needs)
        }
        key = min(ready, key=lambda one: (ready[one], one[2], one[0] != "S", one[1]))
        task = Task(kind=key[0], tile=key[1], step=key[2], start=ready[key], end=ready[key] + spans[key[0]])
        done[key] = task
        free[task.unit] = task.end
        del waiting[key]
    return Timeline(plan=plan, chip=chip, tasks=tuple(done.values()), work=sum(steps) * _product(plan) * 2)


def _product(plan: Plan) -> int:
    return plan.rows * plan.keys * plan.head_dim


def _clocks(plan: Plan, chip: Chip) -> dict[str, float]:
    product = _product(plan) / (chip.matrix_rate * 2 / plan.bytes)
    copy = plan.keys * plan.head_dim * plan.bytes / chip.copy_rate
    return {"S": product, "P": product, "E": plan.rows * plan.keys / chip.exp_rate, "K": copy, "V": copy}


def _all(steps: tuple[int, ...]) -> Iterator[Key]:
    for tile, length in enumerate(steps):
        yield from ((kind, tile, step) for step in range(length) for kind in "SEP")
    yield from ((kind, 0, step) for step in range(max(steps)) for kind in "KV")


def _needs(key: Key, plan: Plan, chip: Chip, steps: tuple[int, ...]) -> Iterator[Key]:
    kind, tile, step = key
    if kind == "S":
        yield ("K", 0, step)
        yield from _before_scores(tile, step, plan, chip)
    elif kind == "E":
        yield ("S", tile, step)
        if step and not chip.tensor_columns:
            yield ("E", tile, step - 1)
    elif kind == "P":
        yield ("E", tile, step)
        yield ("V", 0, step)
        if plan.s_stages == 2 and step + 1 < steps[tile]:
            yield ("S", tile, step + 1)  # issued first
    elif step >= plan.stages:
        reader = "S" if kind == "K" else "P"
        yield from (
            (reader, one, step - plan.stages) for one, length in enumerate(steps) if step - plan.stages < length
        )


def _before_scores(tile: int, step: int, plan: Plan, chip: Chip) -> Iterator[Key]:
    if plan.s_stages == 1:
        if step:
            yield ("P", tile, step - 1)
    elif chip.tensor_columns:
        if step > 1:
            yield ("E", tile, step - 2)
    elif step:
        yield ("E", tile, step - 1)
        if step > 1:
            yield ("P", tile, step - 2)
