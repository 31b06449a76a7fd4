"""`stats`: what a log says as numbers. Counts decisions that were logged, not calls: a cached decision is one line.

Light core and standard library only.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attn_backends.selector.log.columns import align
from attn_backends.selector.log.line import winner_of
from attn_backends.selector.log.phrase import device_phrase, printable

Json = Mapping[str, Any]
NO_BACKEND = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counts over records; every mapping is ordered by falling count, then name.

    `rejections[backend][code]` is the number of records in which that backend was refused with that code;
    `reference_share` is the share of served records that a reference-tier backend serves.
    """

    records: int
    decisions: int  # distinct ids
    requests: int  # distinct requests, device included
    processes: int
    first: str | None
    last: str | None
    backends: Mapping[str, int]
    sources: Mapping[str, int]
    devices: Mapping[str, int]
    reference: int
    reference_share: float
    unserved: int
    rejections: Mapping[str, Mapping[str, int]]

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}


class _Tally:
    """Everything that one pass over the records counts."""

    def __init__(self) -> None:
        self.records = self.reference = 0
        self.ids: set[str] = set()
        self.requests: set[str] = set()
        self.processes: set[tuple[Any, Any]] = set()
        self.first: str | None = None
        self.last: str | None = None
        self.backends: Counter[str] = Counter()
        self.sources: Counter[str] = Counter()
        self.devices: Counter[str] = Counter()
        self.rejections: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, record: Json) -> None:
        self.records += 1
        self.ids.add(record["id"])
        self.requests.add(request_key(record))
        self.devices[device_phrase(record["device"])] += 1
        self.backends[record["backend"] or NO_BACKEND] += 1
        if record.get("source"):
            self.sources[record["source"]] += 1
        self.reference += (winner_of(record) or {}).get("tier") == "reference"
        if "time" in record:
            self.processes.add((record.get("rank"), record.get("pid")))
            self.first = min(self.first or record["time"], record["time"])
            self.last = max(self.last or record["time"], record["time"])
        for one in record["candidates"]:
            if one.get("status") == "rejected":
                self.rejections[one["name"]].update({reason["code"] for reason in one["reasons"]})


def stats(records: Iterable[Json]) -> Stats:
    """Count records in one pass."""
    tally = _Tally()
    for record in records:
        tally.add(record)
    unserved = tally.backends[NO_BACKEND]
    served = tally.records - unserved
    return Stats(
        records=tally.records,
        decisions=len(tally.ids),
        requests=len(tally.requests),
        processes=len(tally.processes),
        first=tally.first,
        last=tally.last,
        backends=_falling(tally.backends),
        sources=_falling(tally.sources),
        devices=_falling(tally.devices),
        reference=tally.reference,
        reference_share=tally.reference / served if served else 0.0,
        unserved=unserved,
        rejections={name: _falling(codes) for name, codes in sorted(tally.rejections.items())},
    )


def stats_text(counted: Stats, *, top: int = 3) -> str:
    """The numbers as aligned plain text; `top` reasons per backend."""
    head = [
        ("records", f"{counted.records:,}"),
        ("decisions", f"{counted.decisions:,} distinct, for {counted.requests:,} distinct requests"),
        ("processes", f"{counted.processes:,}"),
        ("devices", printable(_counts(counted.devices)) or "-"),
        ("time", f"{counted.first} to {counted.last}" if counted.first else "-"),
        ("reference", f"{counted.reference:,} ({counted.reference_share:.1%} of what was served)"),
        ("unserved", f"{counted.unserved:,}"),
    ]
    total = counted.records or 1
    chosen = [(printable(name), f"{count:,}", f"{count / total:.1%}") for name, count in counted.backends.items()]
    refused = [(printable(name), printable(_counts(codes, top))) for name, codes in counted.rejections.items()]
    lines = align(head, indent=0)
    for title, rows in (("chosen", chosen), ("by", list(_named(counted.sources))), ("refused for", refused)):
        lines += ["", title, *align(rows)] if rows else []
    return "\n".join(lines)


def request_key(record: Json) -> str:
    """One text per distinct request on one device (kind, name and architecture)."""
    device = record["device"]
    return json.dumps([record["request"], [device.get(key) for key in ("kind", "name", "arch")]], sort_keys=True)


def _falling(counter: Counter[str]) -> dict[str, int]:
    return dict(
        sorted(((name, count) for name, count in counter.items() if count), key=lambda item: (-item[1], item[0]))
    )


def _counts(counter: Mapping[str, int], top: int | None = None) -> str:
    words = [f"{name} {count:,}" for name, count in counter.items()]
    more = "" if top is None or len(words) <= top else f", {len(words) - top} more"
    return ", ".join(words[:top]) + more


def _named(counter: Mapping[str, int]) -> Iterable[tuple[str, str]]:
    return ((name, f"{count:,}") for name, count in counter.items())


def _plain(value: Any) -> Any:
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value
