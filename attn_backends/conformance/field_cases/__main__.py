"""`python -m attn_backends.conformance.field_cases [FILE] [--backend NAME] [--only FAMILY] [--json]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from attn_backends import list_backends
from attn_backends.conformance.field_cases.outcome import FAILED, Outcome
from attn_backends.conformance.field_cases.reading import SHIPPED, Case, read_cases
from attn_backends.conformance.field_cases.running import run_case


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases of a file; 1 if one fails, 2 if the file, the family or the backend is not there."""
    given = _parser().parse_args(argv)
    try:
        cases = read_cases(given.file)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if given.backend is not None and given.backend not in (known := [one.name for one in list_backends()]):
        sys.stderr.write(f"no backend {given.backend!r}; known: {', '.join(known)}\n")
        return 2
    chosen = [case for case in cases if _wanted(case, given.only, given.backend)]
    if not chosen:
        families = ", ".join(sorted({case.family for case in cases}))
        sys.stderr.write(f"no case of family {given.only!r}; there are {families}\n")
        return 2
    outcomes = [
        run_case(case, dtype, backend=given.backend, device=given.device) for case in chosen for dtype in case.dtypes
    ]
    sys.stdout.write(_as_json(outcomes) if given.json else _as_text(outcomes))
    return int(any(outcome.status == FAILED for outcome in outcomes))


def _wanted(case: Case, family: str | None, backend: str | None) -> bool:
    """A forced backend meets the cases that call attention; the others do not depend on it."""
    if family is not None and case.family != family:
        return False
    return backend is None or (case.kind in ("value", "property") and "rig" in case.table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m attn_backends.conformance.field_cases", description="Run field cases on this machine."
    )
    parser.add_argument(
        "file", nargs="?", type=Path, default=SHIPPED, help="a file of cases (default: the shipped one)"
    )
    parser.add_argument("--backend", help="force this backend on the value and property cases")
    parser.add_argument("--only", metavar="FAMILY", help="the cases of one family")
    parser.add_argument("--device", default="cpu", help="where the tensors lie (default: cpu)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    return parser


def _as_text(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(outcome.status for outcome in outcomes)
    lines = [str(outcome) for outcome in outcomes]
    lines.append(", ".join(f"{counts[status]} {status}" for status in ("passed", "failed", "refused")))
    return "\n".join(lines) + "\n"


def _as_json(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(outcome.status for outcome in outcomes)
    return (
        json.dumps({"counts": dict(counts), "outcomes": [outcome.to_json() for outcome in outcomes]}, indent=2) + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
