"""From a capability box to cases: a plain case inside it, every option alone, the nasty set, and a pairwise cover. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from attn_backends.box import Box, Table, axis_values
from attn_backends.conformance.canonical import canonical
from attn_backends.conformance.case import Case
from attn_backends.conformance.case_request import request_of
from attn_backends.conformance.options import NASTY, Changes, Factors, factors, fewest
from attn_backends.conformance.pairwise import Cover
from attn_backends.conformance.standing import misses
from attn_backends.device import Device

PAIR_TESTS: dict[str, int | None] = {"quick": 14, "full": 120, "deep": None}

# What an option may need beside it: in a box of one alignment the diagonal has to hang there, or on both corners at once.
_BESIDE: tuple[Changes, ...] = ({}, {"top_left": True}, {"seq_q": 33, "seq_k": 33})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """One box on one device, at a level."""

    box: Box
    device: Device
    level: str
    table: Table

    def missed(self, case: Case) -> list[str]:
        """The axes of the box that a case misses."""
        return misses(self.box, axis_values(request_of(case), self.device, self.table), self.table)

    def admits(self, case: Case) -> bool:
        """Whether the box declares the case."""
        return not self.missed(case)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxCases:
    """The cases of one box. `base`: the plainest; None where no case of ours lies in the box, and `nearest` is what came nearest.

    `pairs`: met of all that may meet.
    """

    base: Case | None
    nearest: Case
    cases: tuple[Case, ...] = ()
    pairs: tuple[int, int] = (0, 0)


def cases_of(scope: Scope) -> BoxCases:
    """The cases that try a box, the nastiest first, each once."""
    every = factors(scope.box, scope.level)
    base = _nearest(scope, every)
    if not scope.admits(base):
        return BoxCases(base=None, nearest=base)
    options = {name: _admitted(scope, base, few) for name, few in every.items()}
    singles = [canonical(base.replace(**option)) for few in options.values() for option in few]
    nasty = [_reduced(scope, base, changes) for changes in NASTY]
    backward = [_with_gradients(scope, case) for case in (*nasty, *singles)]
    pairs, met = _pairs(scope, base, fewest({name: few for name, few in options.items() if len(few) > 1}, scope.level))
    cases = tuple(dict.fromkeys((*nasty, base, *singles, *backward, *pairs)))
    return BoxCases(base=base, nearest=base, cases=cases, pairs=met)


def _nearest(scope: Scope, every: Factors) -> Case:
    """The plainest case of the box, or nearest to it: factor by factor, the option that leaves fewest axes missed."""
    case = canonical(Case())
    for _ in range(2):
        for options in every.values():
            tried = [{**beside, **option} for beside in _BESIDE for option in ({}, *options)]
            near = (canonical(case.replace(**changes)) for changes in tried)
            case = min(near, key=lambda one: len(scope.missed(one)))
            if scope.admits(case):
                return case
    return case


def _admitted(scope: Scope, base: Case, options: list[Changes]) -> list[Changes]:
    """The options that the box takes beside the base, that of the base first; with what they need beside them."""
    found: dict[Case, Changes] = {base: {}}
    for option in options:
        for beside in _BESIDE:
            case = canonical(base.replace(**{**beside, **option}))
            if scope.admits(case):
                found.setdefault(case, {**beside, **option})
                break
    return list(found.values())


def _reduced(scope: Scope, base: Case, changes: Changes) -> Case:
    """As much of a nasty case as the box declares."""
    whole = canonical(base.replace(**changes))
    if scope.admits(whole):
        return whole
    case = base
    for name, value in changes.items():
        more = canonical(case.replace(**{name: value}))
        case = more if scope.admits(more) else case
    return case


def _with_gradients(scope: Scope, case: Case) -> Case:
    """The case with as many gradients as the box declares; itself where it declares none."""
    for changes in (
        {"grads": True, "grad_bias": True, "grad_sinks": True}, {"grads": True}, {"grads": True, "lse": False},
    ):  # fmt: skip
        more = canonical(case.replace(**changes))
        if scope.admits(more):
            return more
    return case


def _pairs(scope: Scope, base: Case, options: dict[str, list[Changes]]) -> tuple[list[Case], tuple[int, int]]:
    """A pairwise cover of the options, and how many pairs it leaves open."""
    named = list(options.values())

    def build(picks: dict[int, int]) -> Case | None:
        case = base
        for factor, option in sorted(picks.items()):
            case = case.replace(**named[factor][option])
        case = canonical(case)
        return case if scope.admits(case) else None

    cover: Cover[Case] = Cover([len(few) for few in named], build)
    tests = cover.tests(PAIR_TESTS[scope.level])
    return tests, (cover.total - len(cover.open), cover.total)
