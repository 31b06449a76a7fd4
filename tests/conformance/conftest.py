"""How many field cases each backend served or refused, at the end of a run."""

from __future__ import annotations

from collections import Counter


def pytest_terminal_summary(terminalreporter):
    counts: dict[str, Counter[str]] = {}
    for report in terminalreporter.stats.get("passed", []):
        for name, status in report.user_properties:
            if str(name).startswith("field cases, "):
                counts.setdefault(name, Counter())[status] += 1
    for name, counted in sorted(counts.items()):
        terminalreporter.write_line(f"{name}: {counted['passed']} served, {counted['refused']} refused")
