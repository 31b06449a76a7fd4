"""The first line of every report, and the second: what the backend declares, so that little cannot look like much."""

from __future__ import annotations

import re
from collections import Counter

from attn_backends.conformance.outcome import Outcome
from attn_backends.conformance.record import RunRecord
from attn_backends.registry.certificates import architecture

SHOWN = (Outcome.PASS, Outcome.REFUSED)  # always in the line; the others where there are any
_PLACE = re.compile(r"\b(?:sm_\d+[af]?|gfx\w+|cuda|rocm|cpu|mps|xpu)\b")


def headline(record: RunRecord) -> str:
    """`my_fa 0.1.0: CONFORMS spec 1.0 full | 412 pass, 38 refused, 0 gaps, 12 not run (sm_100) | ... | NVIDIA H200`."""
    parts = [f"{record.backend} {record.version}: {verdict_words(record)}", _counts(record), strength(record)]
    return " | ".join([*parts, device_name(record)])


def verdict_words(record: RunRecord) -> str:
    """`CONFORMS spec 1.0 full`; a partial run never says so, whatever became of it, nor does one in which nothing ran."""
    good = record.conforms
    if all(one.outcome is Outcome.NOT_RUN for one in record.results):
        return f"NOTHING RAN of spec {record.spec} {record.level}"
    if record.only is not None:
        word = "PARTIAL RUN PASSED," if good else "PARTIAL RUN FAILED,"
    else:
        word = "CONFORMS" if good else "DOES NOT CONFORM to"
    return f"{word} spec {record.spec} {record.level}"


def strength(record: RunRecord) -> str:
    """What the suite is worth here: `suite kill rate 61/61, controls 0/8`."""
    test = record.self_test
    if test is None:
        return "suite kill rate not measured here"
    return f"suite kill rate {test['killed']}/{test['mutants']}, controls {test['controls_failed']}/{test['controls']}"


def device_name(record: RunRecord) -> str:
    """The device's own name."""
    return str(record.device.get("name") or record.device.get("kind") or "unknown device")


def device_arch(record: RunRecord) -> str:
    """`sm_90`, `gfx942`, or the kind where there is no architecture; what a certificate is for."""
    arch = record.device.get("arch")
    return architecture(str(record.device.get("kind", "cpu")), (arch[0], arch[1]) if arch else None)


def elsewhere(message: str) -> tuple[str, ...]:
    """The architectures or kinds of device that the reason of a NOT_RUN names; none if it is about something else."""
    return tuple(dict.fromkeys(_PLACE.findall(message)))


def not_run_places(record: RunRecord) -> dict[str, int]:
    """How many items wait for which device."""
    waiting = (one.message for one in record.results if one.outcome is Outcome.NOT_RUN)
    found = Counter(" or ".join(elsewhere(message)) or "other reasons" for message in waiting)
    return dict(found.most_common())


def volume_line(record: RunRecord) -> str:
    """`declares dtype {float16, float32}; head_dim {1..512}; ...`, every axis that the record has."""
    said = "; ".join(f"{axis} {value}" for axis, value in record.volume.items())
    return f"declares {said}" if said else "declares nothing"


def _counts(record: RunRecord) -> str:
    counts = record.counts()
    parts = [f"{counts[one]} {one}" for one in Outcome if counts[one] and (one.bad or one is Outcome.UNDERCLAIM)]
    parts += [f"{counts[one]} {one.lower()}" for one in SHOWN]
    gaps = len(record.gaps)
    parts.append(f"{gaps} gap{'s' if gaps != 1 else ''}")
    if wrong := len(record.errors):
        parts.append(f"{wrong} error{'s' if wrong != 1 else ''} in notes")
    places = not_run_places(record)
    parts.append(f"{counts[Outcome.NOT_RUN]} not run" + (f" ({', '.join(places)})" if places else ""))
    return ", ".join(parts)


def environment_words(record: RunRecord) -> dict[str, str]:
    """Package versions and driver, name by name."""
    said: dict[str, str] = {}
    for name, value in record.environment.items():
        pairs = (
            value.items() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ((name, value),)
        )
        said.update({str(key): str(one) for key, one in pairs if one})
    return said
