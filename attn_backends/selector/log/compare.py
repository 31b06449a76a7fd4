"""`diff`: two runs against each other, request by request: who serves it now, who served it, and what changed between.

Light core and standard library only.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attn_backends.selector.log.columns import align
from attn_backends.selector.log.counts import NO_BACKEND, request_key
from attn_backends.selector.log.line import reason_line
from attn_backends.selector.log.phrase import device_phrase, pairs_phrase, request_phrase, word

Json = Mapping[str, Any]
ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One backend that stands differently: its status in both runs (`absent`: no such candidate), its reasons."""

    name: str
    before: str
    after: str
    gone: tuple[Json, ...]  # reasons that only the first run gives
    new: tuple[Json, ...]  # reasons that only the second run gives


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One request that two runs answer differently: the last record of each, and what differs between them."""

    before: Json
    after: Json
    turns: tuple[Turn, ...]
    inputs: tuple[str, ...]  # `torch 2.11.0 -> 2.13.0`, `policy: ... -> ...`, `registry`


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Two runs: how many requests are answered alike, which differently, and which only one of them met."""

    same: int
    changed: tuple[Change, ...]
    only_a: tuple[Json, ...]
    only_b: tuple[Json, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values only; records whole."""
        changed = [
            {**_fields(one), "turns": [_fields(turn) for turn in one.turns], "inputs": list(one.inputs)}
            for one in self.changed
        ]
        return {"same": self.same, "changed": changed, "only_a": list(self.only_a), "only_b": list(self.only_b)}


def diff(records_a: Iterable[Json], records_b: Iterable[Json]) -> Diff:
    """Compare by request and device.

    A request that a run met several times (under several policies, say) is answered alike if both runs gave it the same
    set of (backend, source).
    """
    a, b = _by_request(records_a), _by_request(records_b)
    both = [key for key in a if key in b]
    changed = [key for key in both if a[key].keys() != b[key].keys()]
    return Diff(
        same=len(both) - len(changed),
        changed=tuple(_change(a[key], b[key]) for key in changed),
        only_a=tuple(_last(a[key], {}) for key in a if key not in b),
        only_b=tuple(_last(b[key], {}) for key in b if key not in a),
    )


def diff_text(found: Diff, *, a: str = "a", b: str = "b") -> str:
    """The comparison as plain text; `a` and `b` are what the reader calls the two runs."""
    total = found.same + len(found.changed)
    lines = [f"{total:,} requests in both: {found.same:,} answered alike, {len(found.changed):,} differently"]
    lines.append(f"{len(found.only_a):,} only in {a}, {len(found.only_b):,} only in {b}")
    for change in found.changed:
        lines += ["", f"{request_phrase(change.after['request'])} on {device_phrase(change.after['device'])}"]
        lines += align(list(_rows(change)))
    for name, records in ((a, found.only_a), (b, found.only_b)):
        if records:
            lines += ["", f"only in {name}", *align([_only(record) for record in records])]
    return "\n".join(lines)


Outcome = tuple[str | None, str | None]  # (backend, source)


def _by_request(records: Iterable[Json]) -> dict[str, dict[Outcome, Json]]:
    """Per request, its last record per outcome, the latest outcome last."""
    found: dict[str, dict[Outcome, Json]] = {}
    for record in records:
        outcomes = found.setdefault(request_key(record), {})
        outcome = (record["backend"], record.get("source"))
        outcomes.pop(outcome, None)
        outcomes[outcome] = record
    return found


def _last(outcomes: Mapping[Outcome, Json], other: Mapping[Outcome, Json]) -> Json:
    """The latest record, preferably of an outcome that the other run does not have."""
    own = [record for outcome, record in outcomes.items() if outcome not in other]
    return (own or list(outcomes.values()))[-1]


def _change(a: Mapping[Outcome, Json], b: Mapping[Outcome, Json]) -> Change:
    before, after = _last(a, b), _last(b, a)
    return Change(before=before, after=after, turns=tuple(_turns(before, after)), inputs=tuple(_inputs(before, after)))


def _turns(before: Json, after: Json) -> Iterator[Turn]:
    old, new = ({one["name"]: one for one in record["candidates"]} for record in (before, after))
    for name in dict.fromkeys((*old, *new)):
        was, now = _standing(old.get(name)), _standing(new.get(name))
        reasons_was, reasons_now = _reasons(old.get(name)), _reasons(new.get(name))
        gone = tuple(reason for key, reason in reasons_was.items() if key not in reasons_now)
        come = tuple(reason for key, reason in reasons_now.items() if key not in reasons_was)
        if now == ABSENT:
            gone = ()
        if was != now or gone or come:
            yield Turn(name=name, before=was, after=now, gone=gone, new=come)


def _standing(candidate: Json | None) -> str:
    return str(candidate.get("status")) if candidate else ABSENT


def _reasons(candidate: Json | None) -> dict[str, Json]:
    reasons = candidate["reasons"] if candidate else ()
    return {json.dumps([r.get(key) for key in ("code", "axis", "got", "want", "message")]): r for r in reasons}


def _inputs(before: Json, after: Json) -> Iterator[str]:
    old, new = (record["environment"].get("versions", {}) for record in (before, after))
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield f"{word(name)} {word(old.get(name))} -> {word(new.get(name))}"
    if before["environment"].get("driver") != after["environment"].get("driver"):
        yield f"driver {word(before['environment'].get('driver'))} -> {word(after['environment'].get('driver'))}"
    if before["policy"] != after["policy"]:
        was, now = (pairs_phrase(record["policy"]) or "default" for record in (before, after))
        yield f"policy: {was} -> {now}"
    if before.get("registry") != after.get("registry"):
        yield f"registry {word(before.get('registry'))} -> {word(after.get('registry'))}"


def _rows(change: Change) -> Iterator[tuple[str, str]]:
    yield "backend", f"{_outcome(change.before)} -> {_outcome(change.after)}"
    for line in change.inputs:
        yield "inputs", line
    for turn in change.turns:
        status = turn.before if turn.before == turn.after else f"{turn.before} -> {turn.after}"
        gone = [f"- {reason_line(reason)}" for reason in turn.gone]
        come = [f"+ {reason_line(reason)}" for reason in turn.new]
        yield word(turn.name), "\n".join([status, *gone, *come])


def _outcome(record: Json) -> str:
    return (
        f"{word(record['backend'] or NO_BACKEND)} ({word(record.get('source'))})" if record["backend"] else NO_BACKEND
    )


def _only(record: Json) -> tuple[str, str]:
    return _outcome(record), f"{request_phrase(record['request'])} on {device_phrase(record['device'])}"


def _fields(record: Any) -> dict[str, Any]:
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
