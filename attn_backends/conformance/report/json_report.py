"""`report.json`: the whole record, by the shipped schema; what `--track` and replays of tolerances read again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from attn_backends.conformance.record import RunRecord
from attn_backends.conformance.report.headline import headline
from attn_backends.errors import AttnBackendsError


class ReportError(AttnBackendsError):
    """A file that should be a report of a run and is none."""


def report_json(record: RunRecord) -> dict[str, Any]:
    """The record as plain values, with its headline; finite numbers only, as JSON has no others."""
    data = record.to_json()
    made: dict[str, Any] = _finite({"schema": data.pop("schema"), "headline": headline(record), **data})
    return made


def render_json(record: RunRecord) -> str:
    """The text of `report.json`."""
    return json.dumps(report_json(record), indent=1, allow_nan=False, default=str) + "\n"


def read_report(path: Path) -> RunRecord:
    """Read a `report.json`. Raises ReportError naming the file and what is wrong with it."""
    try:
        return RunRecord.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ReportError(f"{path}: not a conformance report: {why}") from None


def _finite(value: Any) -> Any:
    """Infinities and NaN (a ratio over a bound of 0) as the largest number there is: they are failures, and stay so."""
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return 1e308
    return value
