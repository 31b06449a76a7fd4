"""One self-contained HTML page of a log: counts, why-not matrix, every decision with its candidates.

The page loads nothing from anywhere and runs from a mail attachment. Jinja2 (extra `[report]`) fills the template with
everything escaped; the details of a decision are embedded as JSON and put on the page as text, never as markup.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_backends.errors import AttnBackendsError
from attn_backends.selector.log.counts import NO_BACKEND, Stats, stats
from attn_backends.selector.log.line import candidates_of, changes_phrase, logged_phrase, notes, reasons_of, winner_of
from attn_backends.selector.log.phrase import device_phrase, pairs_phrase, request_phrase, word

Json = Mapping[str, Any]
MOST = 2000  # decisions listed; counts and matrix always cover all


class ReportExtraError(AttnBackendsError):
    """The package that writes HTML pages is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One decision of the table: its last record, and how often it was logged."""

    record: Json
    count: int

    @property
    def search(self) -> str:
        """What the filter box looks at: id, backend, source, request, device, and `backend:code` of every refusal."""
        refusals = [f"{one['name']}:{reason['code']}" for one in self.record["candidates"] for reason in one["reasons"]]
        words = (self.record["id"], self.backend, self.record.get("source") or "", self.request, self.device)
        return " ".join([*words, *dict.fromkeys(refusals)]).lower()

    @property
    def backend(self) -> str:
        """The chosen backend, or `none`."""
        return str(self.record["backend"] or NO_BACKEND)

    @property
    def tier(self) -> str:
        """`standard`, `reference`, or `none` without a backend."""
        return str((winner_of(self.record) or {}).get("tier", "standard" if self.record["backend"] else NO_BACKEND))

    @property
    def request(self) -> str:
        """The request in a few characters."""
        return request_phrase(self.record["request"])

    @property
    def device(self) -> str:
        """The device in a few characters."""
        return device_phrase(self.record["device"])

    @property
    def rejected(self) -> int:
        """How many candidates were refused."""
        return sum(one.get("status") == "rejected" for one in self.record["candidates"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of the chart; `share` of the longest."""

    name: str
    count: int
    share: float
    tier: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Refusals: one row per backend, one column per reason code, both by falling sum."""

    codes: Sequence[str]
    rows: Sequence[tuple[str, Sequence[int]]]
    highest: int

    @property
    def longest(self) -> int:
        """Characters of the longest code: how much room the rotated heads need."""
        return max(map(len, self.codes), default=0)


def render_html(records: Iterable[Json], *, title: str = "Attention decisions") -> str:
    """The page as text. Raises ReportExtraError without jinja2."""
    template = _template()
    kept = list(records)
    entries = _entries(kept)
    counted = stats(kept)
    shown = entries[:MOST]
    matrix = _matrix(counted)
    page: str = template.render(
        title=title,
        stats=counted,
        facts=_facts(kept, counted),
        bars=_bars(counted, entries),
        matrix=matrix,
        example=_example(shown, matrix),
        entries=shown,
        hidden=len(entries) - len(shown),
        details=embedded([_detail(entry) for entry in shown]),
    )
    return page


def embedded(value: Any) -> str:
    """JSON that is safe inside a `script` element: no `<`, `>` or `&` stands in it, hence no end tag and no comment."""
    text = json.dumps(value, separators=(",", ":"), default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _template() -> Any:
    try:
        import jinja2
    except ImportError:
        raise ReportExtraError("HTML pages need jinja2; in a clone: pip install '.[report]'") from None
    folder = importlib.resources.files(__package__) / "templates"
    sources = {item.name: item.read_text(encoding="utf-8") for item in folder.iterdir() if item.is_file()}
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(sources),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")


def _entries(records: Iterable[Json]) -> list[Entry]:
    """One entry per decision id, the latest first."""
    found: dict[str, tuple[Json, int]] = {}
    for record in records:
        _earlier, count = found.pop(record["id"], (record, 0))
        found[record["id"]] = record, count + 1
    return [Entry(record=record, count=count) for record, count in reversed(found.values())]


def _facts(records: Sequence[Json], counted: Stats) -> list[tuple[str, str]]:
    """What the run was: devices, versions (all that occur), times, processes."""
    versions: dict[str, dict[str, None]] = {}
    for record in records:
        environment = record["environment"]
        for name, version in {"driver": environment.get("driver"), **environment.get("versions", {})}.items():
            if version:
                versions.setdefault(name, {})[word(version)] = None
    facts = [("devices", ", ".join(counted.devices))]
    facts += [(word(name), " / ".join(found)) for name, found in versions.items()]
    if counted.first and counted.last:
        facts.append(("time", f"{_minute(counted.first)} to {_minute(counted.last)} UTC"))
        facts.append(("processes", f"{counted.processes:,}"))
    return [(name, value) for name, value in facts if value]


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


def _bars(counted: Stats, entries: Iterable[Entry]) -> list[Bar]:
    tiers = {entry.backend: entry.tier for entry in entries}
    longest = max(counted.backends.values(), default=1)
    return [
        Bar(name=name, count=count, share=count / longest, tier=tiers.get(name, "standard"))
        for name, count in counted.backends.items()
    ]


def _matrix(counted: Stats) -> Matrix:
    sums: dict[str, int] = {}
    for codes in counted.rejections.values():
        for code, count in codes.items():
            sums[code] = sums.get(code, 0) + count
    columns = sorted(sums, key=lambda code: (-sums[code], code))
    rows = [(name, [codes.get(code, 0) for code in columns]) for name, codes in counted.rejections.items()]
    rows.sort(key=lambda row: (-sum(row[1]), row[0]))
    return Matrix(codes=columns, rows=rows, highest=max((max(cells, default=0) for _name, cells in rows), default=0))


def _example(entries: Sequence[Entry], matrix: Matrix) -> str:
    """Words for the filter that find something in this very log: a dtype, and a refusal."""
    words = entries[0].request.split()[:1] if entries else []
    for name, cells in matrix.rows[:1]:
        words.append(f"{name}:{matrix.codes[max(range(len(cells)), key=cells.__getitem__)]}")
    return " ".join(words)


def _detail(entry: Entry) -> dict[str, Any]:
    """What the page shows when a row is opened; texts only, rendered here so that page and text agree."""
    record = entry.record
    return {
        "facts": [
            ["decision", record["id"]],
            ["device", entry.device],
            ["policy", pairs_phrase(record["policy"]) or "default"],
            ["registry", word(record.get("registry"))],
            ["logged", logged_phrase(record)],
        ],
        "request": [[name, word(value)] for name, value in record["request"].items()],
        "candidates": [_candidate(one) for one in candidates_of(record)],
        "nearest": [[word(one.get("backend")), changes_phrase(one)] for one in record["nearest"]],
    }


def _candidate(one: Json) -> dict[str, Any]:
    return {
        "name": word(one["name"]),
        "version": word(one.get("version") or ""),
        "tier": word(one.get("tier") or ""),
        "status": word(one.get("status")),
        "stage": word(one.get("stage")),
        "rank": "" if one.get("rank") is None else str(one["rank"]),
        "notes": notes(one),
        "reasons": [
            {key: str(reason.get(key) or "") for key in ("code", "message", "hint", "source")}
            for reason in reasons_of(one)
        ],
    }
