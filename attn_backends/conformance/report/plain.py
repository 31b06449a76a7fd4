"""Texts of backends as reports may show them: no control characters, not endless. A backend may print anything."""

from __future__ import annotations

import re

LONGEST = 4000
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def clean(text: str, longest: int = LONGEST) -> str:
    """Control characters (terminal colours, NUL, lone surrogates) as U+FFFD, and the middle of a long text left out."""
    short = _CONTROL.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))
    if len(short) <= longest:
        return short
    half = longest // 2
    return f"{short[:half]}\n[... {len(short) - 2 * half:,} characters ...]\n{short[-half:]}"


def first_line(text: str, longest: int = 160) -> str:
    """The first line that says something, cut."""
    line = next((part.strip() for part in clean(text).split("\n") if part.strip()), "")
    return line if len(line) <= longest else line[: longest - 1] + "\u2026"
