"""What will run against a backend, what cannot, and why: from its declaration alone, nothing is loaded or run.

Every box that this device has gets its cases (`generating`), each against the oracle; some of them for every exact rig
and property; and for every axis a case just outside, which must be refused. A declared feature that no case shows is
listed, and fails the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import attn_backends
from attn_backends.box import Box, Table
from attn_backends.capability import TABLE, Row
from attn_backends.conformance.case import EVEN_BLOCK, Case
from attn_backends.conformance.case_request import needs_backward, request_of
from attn_backends.conformance.checks import CHECKS
from attn_backends.conformance.checks.check import Check
from attn_backends.conformance.cover import added_items
from attn_backends.conformance.elsewhere import elsewhere_of
from attn_backends.conformance.flips import ON_REQUEST, flipped, small_enough
from attn_backends.conformance.gaps import Gap, read_gaps, refused_by_gap
from attn_backends.conformance.generating import Scope, cases_of
from attn_backends.conformance.item import Item
from attn_backends.conformance.record import LEVELS
from attn_backends.conformance.shown import showing, unshown
from attn_backends.conformance.standing import graph_level, here, standing
from attn_backends.device import Device
from attn_backends.errors import UnfitBackendError
from attn_backends.registry.manifest import Manifest
from attn_backends.registry.registry import default_registry

PER_PROPERTY = {"quick": 3, "full": 10, "deep": 40}  # cases per property and box
PER_FLIP = {"quick": 1, "full": 2, "deep": 6}  # refused cases per axis and box
SLOW = {"compiled": 3, "captured": 6, "batch_invariant": 2}  # at most so many cases per box
LONG = {"quick": 300, "full": 2100, "deep": 4200}  # keys of the batch_invariant cases


@dataclass(frozen=True, slots=True, kw_only=True)
class NotHere:
    """An item of other hardware, and which: `sm_80 or sm_90`, `cuda`."""

    item: Item
    needs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """items: run these, in this order; not_run: what other hardware would run; uncovered: (axis, value) with no case.

    gaps: what the backend says that it does wrong; cases in there are probed.
    """

    items: tuple[Item, ...]
    not_run: tuple[NotHere, ...] = ()
    notes: tuple[str, ...] = ()
    uncovered: tuple[tuple[str, str], ...] = ()
    gaps: tuple[Gap, ...] = ()


@dataclass(slots=True)
class _Draft:
    items: dict[str, Item] = field(default_factory=dict)
    not_run: dict[str, NotHere] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)  # declared here, and run
    met: int = 0  # of the pairs of options of all boxes
    pairs: int = 0
    waiting: Counter[str] = field(default_factory=Counter)  # what boxes need that are not for this device

    def add(self, check: Check, case: Case) -> None:
        """One check on one case, once."""
        self.put(Item(check.name, case, check.clauses_of(case)))

    def put(self, item: Item) -> None:
        """One item, once."""
        self.items.setdefault(item.id, item)


def plan(manifest: Manifest, level: str, device: Device, table: Table = TABLE) -> Plan:
    """The plan for one backend on one device, real or pretended.

    Raises ValueError for a level that is none, ManifestError for known gaps that cannot be read.
    """
    if level not in LEVELS:
        raise ValueError(f"level {level!r} is none of {', '.join(LEVELS)}")
    gaps = read_gaps(manifest)
    draft = _Draft()
    present = here(manifest.boxes, device, table)
    for box in manifest.boxes:
        if box in present:
            _plan_box(draft, manifest, Scope(box=box, device=device, level=level, table=table))
        else:
            _plan_elsewhere(draft, box, level, table)
    uncovered = [(axis, str(value)) for axis, value in unshown(present, draft.cases, device, table)]
    draft.notes += [_waiting(count, len(manifest.boxes), needs) for needs, count in draft.waiting.items()]
    if not present:
        draft.notes.append(f"no box declares {device.describe()}")
    if draft.met < draft.pairs:
        said = f"{draft.met:,} of {draft.pairs:,} pairs of options are tried together or exclude each other"
        draft.notes.append(said if level == LEVELS[-1] else f"{said}; a higher level tries more")
    return Plan(
        items=tuple(draft.items.values()), not_run=tuple(draft.not_run.values()), notes=tuple(draft.notes),
        uncovered=tuple(uncovered), gaps=gaps,
    )  # fmt: skip


def _plan_box(draft: _Draft, manifest: Manifest, scope: Scope) -> None:
    found = cases_of(scope)
    if found.base is None:
        axes = ", ".join(dict.fromkeys(scope.missed(found.nearest)))
        draft.notes.append(
            f"{scope.box.source}: no case of the suite lies in this box; the nearest, {found.nearest.id}, misses {axes}"
        )
        return
    draft.met, draft.pairs = draft.met + found.pairs[0], draft.pairs + found.pairs[1]
    open_cases = _not_refused(draft, manifest, scope, [*found.cases, *showing(scope, found.cases)])
    draft.cases += open_cases
    for case in open_cases:
        draft.put(_judged(case))
    for check in CHECKS.values():
        if check.kind in ("exact", "property") or check.name in ("lse_gradients", "d_out_strides"):
            _plan_property(draft, check, scope, open_cases)
    _plan_added(draft, manifest, scope)
    for row in scope.table:
        _plan_refusals(draft, manifest, scope, found.base, row)


def _not_refused(draft: _Draft, manifest: Manifest, scope: Scope, cases: list[Case]) -> list[Case]:
    """The cases that the selector lets through; those in a known gap are probed, so that a fixed gap is noticed."""
    kept = []
    for case in cases:
        codes = _refused_under(manifest, case, scope.device)
        if set(codes) == {"check"} and "block" in case.granularities:
            case = case.replace(scale_block=EVEN_BLOCK)  # noqa: PLW2901  # the block that a tile of many kernels has
            codes = _refused_under(manifest, case, scope.device)
        if refused_by_gap(codes):
            draft.add(CHECKS["probe-gap"], case)
        elif codes and set(codes) <= {"quarantine", "check", "smem"}:
            draft.notes.append(f"{case.id} is refused here: {', '.join(codes)}")
        else:
            kept.append(case)
    return kept


def _refused_under(manifest: Manifest, case: Case, device: Device) -> tuple[str, ...]:
    """The codes of a refusal of this backend, empty where it is selected (or not registered)."""
    if manifest.name not in default_registry().snapshot().names():
        return ()
    policy = attn_backends.Policy(numerics=frozenset({"exact", manifest.numerics}))
    try:
        attn_backends.select(request_of(case), backend=manifest.name, policy=policy, device=device)
    except UnfitBackendError as error:
        reasons = error.decision.candidate(manifest.name).reasons if error.decision else ()
        return tuple(dict.fromkeys(reason.code for reason in reasons))
    return ()


def _plan_property(draft: _Draft, check: Check, scope: Scope, cases: list[Case]) -> None:
    """A few cases that differ much, for one check."""
    if LEVELS.index(check.level) > LEVELS.index(scope.level) or (check.gpu and scope.device.kind == "cpu"):
        return
    if check.name == "batch_invariant":
        cases = [*(_long(scope, case) for case in cases if case.batch_invariant), *cases]
    if check.name == "compiled":
        cases = [case for case in cases if _admits_compile(scope, case)]
    if check.name == "captured":
        cases = [case for case in cases if graph_level([scope.box], case, scope.device, scope.table) != "never"]
    fitting = [case for case in cases if check.applies(case)]
    most = min(PER_PROPERTY[scope.level], SLOW.get(check.name, 1000))
    for case in _spread(fitting, most):
        draft.add(check, case)


def _plan_added(draft: _Draft, manifest: Manifest, scope: Scope) -> None:
    """The items that some mutant needs and generation does not make, where the box declares their cases."""
    for item in added_items():
        check = CHECKS[item.check]
        too_deep = LEVELS.index(check.level) > LEVELS.index(scope.level) or (check.gpu and scope.device.kind == "cpu")
        if not too_deep and scope.admits(item.case) and not _refused_under(manifest, item.case, scope.device):
            draft.add(check, item.case)
            draft.cases.append(item.case)


def _long(scope: Scope, case: Case) -> Case:
    """The case with many keys, if the box takes that."""
    longer = case.replace(seq_q=3, seq_k=LONG[scope.level])
    return longer if scope.admits(longer) else case


def _admits_compile(scope: Scope, case: Case) -> bool:
    request = request_of(case).replace(compile=True)
    return standing([scope.box], request, scope.device, scope.table).fits


def _spread(cases: list[Case], most: int) -> list[Case]:
    """Cases that share as few values as possible with those taken before."""
    taken: list[Case] = []
    seen: dict[tuple[str, object], int] = {}
    left = list(cases)
    while left and len(taken) < most:
        best = min(left, key=lambda case: sum(seen.get(fact, 0) for fact in _facts(case)))
        left.remove(best)
        taken.append(best)
        for fact in _facts(best):
            seen[fact] = seen.get(fact, 0) + 1
    return taken


def _facts(case: Case) -> list[tuple[str, object]]:
    return [(name, getattr(case, name)) for name in case.__dataclass_fields__]


def _plan_refusals(draft: _Draft, manifest: Manifest, scope: Scope, base: Case, row: Row) -> None:
    """Cases one step outside the declaration on one axis: refused, and at higher levels run all the same."""
    refusal, probe = CHECKS[f"refused-{row.axis}"], CHECKS.get(f"probe-{row.axis}")
    if row.axis in ON_REQUEST:
        if not any(item.check == refusal.name for item in draft.items.values()):
            draft.add(refusal, base)
        return
    outside = _outside(manifest.boxes, scope, base, row.axis)
    for case in outside[: PER_FLIP[scope.level]]:
        draft.add(refusal, case)
        if scope.level != "quick" and probe is not None and probe.applies(case):
            draft.add(probe, case)


def _outside(boxes: Iterable[Box], scope: Scope, base: Case, axis: str) -> list[Case]:
    """Flips that no box takes and whose nearest box misses this axis, those that miss it alone first."""
    found = []
    for case in flipped(base, axis):
        stands = standing(tuple(boxes), request_of(case), scope.device, scope.table)
        if axis in stands.axes:
            found.append((len(stands.axes), not small_enough(case), case))
    return [case for _, _, case in sorted(found, key=lambda entry: entry[:2])]


def _plan_elsewhere(draft: _Draft, box: Box, level: str, table: Table) -> None:
    """A box of other hardware: its cases, which do not run here."""
    there = elsewhere_of(box, table)
    if there is None:
        draft.notes.append(f"{box.source}: no device is known that it declares")
        return
    found = cases_of(Scope(box=box, device=there.device, level=level, table=table))
    for case in found.cases:
        item = _judged(case)
        draft.not_run.setdefault(item.id, NotHere(item=item, needs=there.needs))
    draft.waiting[there.needs] += 1


def _waiting(count: int, of: int, needs: str) -> str:
    verb = "needs" if count == 1 else "need"
    return f"not run here: {count} of {of} box{'es' if of > 1 else ''}, which {verb} {needs}"


def _judged(case: Case) -> Item:
    """The case against the oracle."""
    check = CHECKS["gradients" if needs_backward(case) else "oracle"]
    return Item(check.name, case, check.clauses_of(case))
