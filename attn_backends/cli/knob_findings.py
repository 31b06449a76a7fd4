"""What `doctor` says of the environment variables `ATTN_BACKENDS_*`: all of them, what they mean, and what is wrong."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from attn_backends.box import nearest_names
from attn_backends.cli.finding import Finding
from attn_backends.errors import AttnBackendsError
from attn_backends.registry.knobs import KNOBS, PREFIX, current_knobs, unknown_knobs

AREA = "knobs"
# Knobs that name backends, and what follows from a name that nobody has.
NAMING = {"BLOCK": "it blocks nobody", "ONLY": "it lets nobody in", "PIN": "no call works like this"}


def knobs(backends: Collection[str]) -> Iterator[Finding]:
    """Every knob, then every variable that looks like one and is none; without `backends`, names are not looked at."""
    for name, doc in KNOBS.items():
        value = os.environ.get(PREFIX + name)
        nobody = _nobody(name, value, backends) if value and backends else ""
        if value is None:
            yield Finding(area=AREA, subject=PREFIX + name, level="ok", text=f"not set: {doc}")
        elif nobody:
            level, hint = "bad" if name == "PIN" else "warn", f"correct it: {NAMING[name]}"
            yield Finding(area=AREA, subject=PREFIX + name, level=level, text=f"{value!r}: {nobody}", hint=hint)
        else:
            yield Finding(area=AREA, subject=PREFIX + name, level="note", text=f"{value!r}: {doc}")
    for problem in unknown_knobs(os.environ):
        yield Finding(area=AREA, subject="unknown", level="warn", text=problem, hint="unset it, or correct its name")


def illegal_knobs() -> list[Finding]:
    """The first knob whose value means nothing; with it, nothing else can be asked."""
    try:
        current_knobs()
    except AttnBackendsError as error:
        hint = "correct it: no call works like this"
        return [Finding(area=AREA, subject="illegal", level="bad", text=str(error), hint=hint)]
    return []


def _nobody(name: str, value: str, backends: Collection[str]) -> str:
    """What is said of the names that no backend has; empty where there are none."""
    if name not in NAMING:
        return ""
    named = [value] if name == "PIN" else [part.strip() for part in value.split(",")]
    strange = [one for one in named if one and one not in backends]
    return "; ".join(f"no backend {one!r}; {nearest_names(one, backends)}" for one in strange)
