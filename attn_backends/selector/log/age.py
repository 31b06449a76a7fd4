"""`age_phrase`: how long ago something was, in one unit. Clocks are set and drift: a time to come has no age."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def age_phrase(then: str, *, now: datetime | None = None) -> str:
    """`3 days ago`; `just now`; empty where `then` is no time, or lies ahead of the clock."""
    try:
        moment = datetime.fromisoformat(then)
    except ValueError:
        return ""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    seconds = ((now or datetime.now(UTC)) - aware).total_seconds()
    if seconds < 0:
        return ""
    for size, name in _UNITS:
        count = int(seconds // size)
        if count:
            return f"{count} {name}{'s' if count > 1 else ''} ago"
    return "just now"
