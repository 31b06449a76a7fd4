"""`moment`: a time as people type it, ISO or an age, in the form in which records carry theirs."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment(text: str, *, now: datetime | None = None) -> str:
    """`2026-05-04 10:00`, `2026-05-04T10:00+02:00` or an age (`30m`, `2h`, `7d`) as UTC, comparable to a record's time.

    A time without a zone is UTC, as in the records. Raises ValueError naming what is allowed.
    """
    age = _AGE.fullmatch(text.strip())
    try:
        if age:
            then = (now or datetime.now(UTC)) - timedelta(**{_UNITS[age[2]]: float(age[1])})
        else:
            then = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is no time; allowed: 2026-05-04, 2026-05-04T10:00, or an age: 90s, 30m, 2h, 7d"
        ) from None
    aware = then if then.tzinfo else then.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="microseconds")
