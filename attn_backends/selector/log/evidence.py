"""The evidence beside a decision log: one file per process with what its ledger counted and its profiles attributed.

    evidence-<rank>-<pid>.json    {"schema": "attn.evidence/1", "decisions": [...]}

A file is replaced whole. Over several processes counts add up, and the strongest level counts. Standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SCHEMA = "attn.evidence/1"
LEVELS = ("registered", "selected", "executed", "profiled")  # from weak to strong
COUNTS = {
    "launches": "launch", "backwards": "backward", "captures": "capture", "replays": "replay", "errors": "error",
}  # fmt: skip

Json = dict[str, Any]


def write_evidence(folder: Path, decisions: Iterable[Json]) -> None:
    """Write this process's file; nothing where it has nothing to say. Raises OSError."""
    from attn_backends.selector.log.sink import current_rank

    found = list(decisions)
    if not found:
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"evidence-{current_rank()}-{os.getpid()}.json"
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps({"schema": SCHEMA, "decisions": found}) + "\n", encoding="utf-8")
    draft.replace(path)


def evidence_of(identity: str, sources: Iterable[str | os.PathLike[str]]) -> Json | None:
    """What is known of a decision in these folders (of a file: in its folder); None where it never ran."""
    folders = dict.fromkeys(path if path.is_dir() else path.parent for path in map(Path, sources))
    found = [
        one
        for folder in folders
        for path in sorted(folder.glob("evidence-*.json"))
        for one in _decisions(path)
        if one.get("id") == identity
    ]
    return _together(found) if found else None


def _decisions(path: Path) -> list[Json]:
    """Of one file; none of a damaged or a foreign one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        return []
    return [one for one in data.get("decisions", ()) if isinstance(one, dict) and one.get("level") in LEVELS]


def _together(found: list[Json]) -> Json:
    conversions: dict[str, int] = {}
    kernels: dict[tuple[str, str], Json] = {}
    for one in found:
        for name, size in one.get("conversions", {}).items():
            conversions[name] = conversions.get(name, 0) + size
        for kernel in one.get("kernels", ()):
            _add(kernels, kernel)
    return {
        "level": max((one["level"] for one in found), key=LEVELS.index), "processes": len(found),
        **{name: sum(one.get(name, 0) for one in found) for name in COUNTS},
        "conversions": conversions, "kernels": sorted(kernels.values(), key=lambda kernel: -kernel["us"]),
    }  # fmt: skip


def _add(kernels: dict[tuple[str, str], Json], kernel: Mapping[str, Any]) -> None:
    key = (kernel["name"], kernel["device"])
    known = kernels.setdefault(key, {**kernel, "count": 0, "replayed": 0, "us": 0.0})
    for name in ("count", "replayed", "us"):
        known[name] += kernel[name]


def phrase(evidence: Mapping[str, Any] | None) -> str:
    """`executed: 12 launches, 3 captures, 30 replays`; the counts that are not zero."""
    if evidence is None:
        return "selected: no launch was counted under it"
    counts = [
        f"{evidence[name]:,} {one if evidence[name] == 1 else name}"
        for name, one in COUNTS.items()
        if evidence.get(name)
    ]
    return f"{evidence['level']}: {', '.join(counts)}" if counts else str(evidence["level"])
