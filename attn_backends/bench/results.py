"""The results file of one suite: a head (what the figures depend on) and one record per cell, saved after every cell.

A second run with the same file goes on where the first one ended, if suite, size, device, versions, seed and method agree.
The format is `attn.bench/1`, JSON Schema in `schema/`. Light: reading needs no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attn_backends.errors import AttnBackendsError

SCHEMA = "attn.bench/1"
SHIPPED = Path(__file__).with_name("schema") / "bench-1.schema.json"
AGREE = ("suite", "size", "device", "versions", "seed", "method")  # what a run that goes on must have in common
OK, REFUSED, WRONG, ERROR, OUT_OF_MEMORY, LOST = "ok", "refused", "wrong", "error", "out_of_memory", "device_lost"
CAPPED = "capped"  # left out by the run itself, which says why
STATUSES = (OK, REFUSED, WRONG, ERROR, OUT_OF_MEMORY, LOST, CAPPED)

Json = dict[str, Any]


class ResultsError(AttnBackendsError):
    """A file that is no results file, or one that this run must not go on with."""


@dataclass(slots=True)
class Results:
    """One suite on one device. `head` is plain values; `cells` are records by cell id, in the order of the suite."""

    head: Json
    cells: dict[str, Json] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Raises ResultsError for anything but a results file of this schema."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ResultsError(f"{path.name}: cannot be read as JSON: {error}") from None
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        if found != SCHEMA:
            raise ResultsError(f"{path.name}: schema {found!r}; a results file of `attn-backends bench` has {SCHEMA!r}")
        head = {name: value for name, value in data.items() if name != "cells"}
        return cls(head, {cell["id"]: cell for cell in data["cells"]})

    def to_json(self) -> Json:
        """The whole file."""
        return {**self.head, "cells": list(self.cells.values())}

    def write(self, path: Path) -> None:
        """Replace the file at once, so that a run that is killed leaves a whole one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        draft.replace(path)

    def outcomes(self) -> Iterator[tuple[Json, str, Json]]:
        """(cell, backend, outcome) for all that was tried."""
        for cell in self.cells.values():
            for backend, outcome in cell["results"].items():
                yield cell, backend, outcome

    def timed(self) -> Iterator[tuple[Json, str, Json]]:
        """Those outcomes that have times."""
        return (found for found in self.outcomes() if found[2]["status"] == OK)

    def backends(self) -> list[str]:
        """Every backend that was timed, in the order of first appearance."""
        return list(dict.fromkeys(backend for _, backend, _ in self.timed()))


def continued(path: Path, head: Json) -> Results:
    """What lies at `path` already, under a new head; empty where nothing does.

    Raises ResultsError where the file was made under other conditions.
    """
    if not path.exists():
        return Results(head)
    old = Results.read(path)
    differences = list(_differences(old.head, head))
    if differences:
        raise ResultsError(
            f"{path.name} was made under other conditions: {'; '.join(differences)}\n"
            "give another --out, or --fresh to begin anew"
        )
    kept: Json = {name: old.head[name] for name in ("started", "seconds", "clocks") if name in old.head}
    commands = [*old.head["commands"], *(one for one in head["commands"] if one not in old.head["commands"])]
    return Results({**head, **kept, "commands": commands}, old.cells)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in AGREE:
        was, now = old.get(name), new.get(name)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            keys = [key for key in {**was, **now} if was.get(key) != now.get(key)]
            yield from (f"{name} {key} {was.get(key)} -> {now.get(key)}" for key in keys)
        elif was != now:
            yield f"{name} {was} -> {now}"
