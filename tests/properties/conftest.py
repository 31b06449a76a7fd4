"""The share of random requests that each backend was eligible for, at the end of a run."""

from __future__ import annotations


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name in ("eligible", "real calls"):
                terminalreporter.write_line(f"{name}: {value}")
