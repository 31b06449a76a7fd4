"""A decision's record as text: `info_line` for the log, `record_text` for `explain` and `log why`.

Both render the record and nothing else, so that text and JSON cannot disagree. Plain text, no colours. Light core and
standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from attn_backends.selector.log.age import age_phrase
from attn_backends.selector.log.columns import align
from attn_backends.selector.log.phrase import (
    STRIDES,
    arch_word,
    device_phrase,
    pairs_phrase,
    printable,
    request_phrase,
    word,
)

Json = Mapping[str, Any]

SOURCES = {
    "explicit": "the call names it",
    "scope": "a scope names it: with use(...)",
    "prefer": "first fitting one in the policy's prefer",
    "rank_hook": "a rank hook of the policy put it first",
    "measured": "fastest measured on this device",
    "cost_model": "fastest by the cost model",
    "priority": "highest declared priority",
}
ELSEWHERE = ("device", "arch")  # axes of the hardware; the others are of the call
UNKNOWN = "unknown_feature"  # the axis of what a newer version asked for
_ORDER = {"selected": 0, "outranked": 1, "rejected": 2}


def info_line(record: Json) -> str:
    """The one INFO line of a decision, `key=value` words that grep well.

    `attn backend=sdpa_flash source=priority request="bf16 bshd ..." device="H200 sm_90" rejected=6 id=1f2e...`;
    `tier=reference`, `converts=` and `nearest=` appear where they say something.
    """
    return "attn " + " ".join(f"{key}={_quoted(value)}" for key, value in _facts(record))


def record_text(record: Json) -> str:
    """The whole story in aligned columns: winner, inputs, every candidate with its reasons, nearest relaxations."""
    sections = [[f"decision {record.get('id')}", *align(list(_head(record)))], _candidates(record), _nearest(record)]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def candidates_of(record: Json) -> list[Json]:
    """Every candidate: one that was chosen by name, the winner, the outranked in rank order, the rejected by name."""
    forced = (record.get("forced") or {}).get("name")
    return sorted(record.get("candidates", ()), key=lambda one: (one.get("name") != forced, *_place(one)))


def winner_of(record: Json) -> Json | None:
    """The selected candidate, if there is one."""
    return next((one for one in record.get("candidates", ()) if one.get("status") == "selected"), None)


def changes_phrase(relaxation: Json) -> str:
    """`head_dim 320 -> 256, dtype float32 -> bfloat16`."""
    return ", ".join(_change(one) for one in relaxation.get("changes", ()))


def reasons_of(candidate: Json) -> list[Json]:
    """What the call asks for first; that the backend is for other hardware goes last, it tells the least."""
    return sorted(candidate.get("reasons", ()), key=lambda reason: reason.get("axis") in ELSEWHERE)


def reason_line(reason: Json) -> str:
    """What was asked and what is declared, the hint in brackets, then where that is written."""
    text = "\n".join(map(printable, str(reason.get("message") or reason.get("code")).splitlines()))
    if reason.get("hint"):
        text += f" ({word(reason['hint'])})"
    return f"{text}  <- {word(reason['source'])}" if reason.get("source") else text


def notes(candidate: Json) -> list[str]:
    """What is known of a candidate besides its reasons: times and conversions, one line each."""
    times = {kind: candidate.get(f"{kind}_ms") for kind in ("measured", "predicted")}
    lines = [f"{kind} {time:.4g} ms" for kind, time in times.items() if time is not None]
    if times["measured"] is not None:
        lines[0] += _of_what_and_when(candidate)
    if candidate.get("conversions"):
        lines.append("converts: " + ", ".join(map(word, candidate["conversions"])))
    return lines


def _of_what_and_when(candidate: Json) -> str:
    """` between neighbouring sizes, 3 days ago`, as far as it is known."""
    age = age_phrase(str(candidate.get("measured_at") or ""))
    where = " between neighbouring sizes" if candidate.get("measured_by") == "neighbours" else ""
    return where + (f", {age}" if age else "")


def logged_phrase(record: Json) -> str:
    """When and by whom it was written; empty for a record that comes straight from a decision."""
    if "time" not in record:
        return ""
    return f"{word(record['time'])} by rank {record.get('rank')}, pid {record.get('pid')}, line {record.get('seq')}"


def _facts(record: Json) -> Iterator[tuple[str, str]]:
    winner = winner_of(record) or {}
    yield "backend", record.get("backend") or "none"
    if record.get("source"):
        yield "source", record["source"]
    if winner.get("tier") == "reference":
        yield "tier", "reference"
    yield "request", request_phrase(record.get("request", {}))
    yield "device", device_phrase(record.get("device", {}))
    if winner.get("conversions"):
        yield "converts", ",".join(map(str, winner["conversions"]))
    if record.get("backend") is None and record.get("nearest"):
        first = record["nearest"][0]
        yield "nearest", f"{first.get('backend')}: {changes_phrase(first)}"
    yield "rejected", str(sum(one.get("status") == "rejected" for one in record.get("candidates", ())))
    yield "id", str(record.get("id"))


def _quoted(value: str) -> str:
    """A word as it stands; anything with a space, a quote or a control character as a JSON string."""
    plain = value and value.isprintable() and not any(c in value for c in ' "=')
    return value if plain else json.dumps(value, ensure_ascii=not value.isprintable())


def _head(record: Json) -> Iterator[tuple[str, str]]:
    yield "backend", _winner_phrase(record)
    request = record.get("request", {})
    yield "request", request_phrase(request)
    if strides := {name: request[name] for name in STRIDES if request.get(name)}:
        yield "strides", pairs_phrase(strides)
    yield "device", _device(record)
    yield "policy", pairs_phrase(record.get("policy", {})) or "default"
    environment = record.get("environment", {})
    if versions := environment.get("versions"):
        yield "versions", ", ".join(f"{word(name)} {word(version)}" for name, version in versions.items())
    yield "registry", word(record.get("registry"))
    if logged := logged_phrase(record):
        yield "logged", logged


def _winner_phrase(record: Json) -> str:
    if record.get("backend") is None:
        forced = record.get("forced")
        return f"none: {word(forced.get('name'))} is forced and does not fit" if forced else "none: no backend fits"
    source = record.get("source")
    reason = f"{source}: {SOURCES[source]}" if source in SOURCES else str(source)
    winner = winner_of(record) or {}
    facts = [str(winner[key]) for key in ("tier", "numerics") if winner.get(key)]
    kind = f" ({', '.join(facts)})" if facts else ""
    return f"{word(record['backend'])} {word(winner.get('version', ''))}".rstrip() + f"{kind}, by {reason}"


def _device(record: Json) -> str:
    device = record.get("device", {})
    words = [word(device.get("kind"))] if device.get("name") != device.get("kind") else []
    if arch := arch_word(device.get("kind"), device.get("arch")):
        words.append(arch)
    if device.get("pretended"):
        words.append("pretended")
    if driver := record.get("environment", {}).get("driver"):
        words.append(f"driver {word(driver)}")
    return f"{word(device.get('name') or device.get('kind'))}" + (f" ({', '.join(words)})" if words else "")


def _candidates(record: Json) -> list[str]:
    rows = [
        (
            str(one.get("rank") if one.get("rank") is not None else "-"),
            f"{word(one.get('name'))} {word(one.get('version') or '')}".rstrip(),
            _status(one),
            _story(one),
        )
        for one in candidates_of(record)
    ]
    return ["candidates", *align(rows)] if rows else ["candidates", "  none are registered"]


def _status(candidate: Json) -> str:
    status = str(candidate.get("status"))
    return f"{status}: {candidate.get('stage')}" if status == "rejected" else status


def _story(candidate: Json) -> str:
    lines = [reason_line(reason) for reason in reasons_of(candidate)]
    return "\n".join([*lines, *notes(candidate)])


def _nearest(record: Json) -> list[str]:
    rows = [(word(one.get("backend")), changes_phrase(one)) for one in record.get("nearest", ())]
    return ["would fit after", *align(rows)] if rows else []


def _place(candidate: Json) -> tuple[int, float, str]:
    rank = candidate.get("rank")
    return (
        _ORDER.get(candidate.get("status", ""), 3),
        float("inf") if rank is None else rank,
        str(candidate.get("name")),
    )


def _change(change: Json) -> str:
    if change.get("axis") == UNKNOWN:
        got = change.get("got")
        names = list(map(word, got)) if isinstance(got, list | tuple) else [word(got)]
        return f"drop the unknown field{'s' if len(names) > 1 else ''} {', '.join(names)}"
    return f"{change.get('part') or change.get('axis')} {_axis_word(change, 'got')} -> {_axis_word(change, 'want')}"


def _axis_word(change: Json, key: str) -> str:
    value = change.get(key)
    dotted = change.get("axis") == "arch" and isinstance(value, list | tuple)
    return ".".join(map(str, value)) if dotted and value is not None else word(value)
