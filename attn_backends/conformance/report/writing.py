"""Write every report of a run into a folder, each whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from attn_backends.conformance.record import RunRecord
from attn_backends.conformance.report.html import ReportExtraError, render_html
from attn_backends.conformance.report.json_report import render_json
from attn_backends.conformance.report.junit import render_junit
from attn_backends.conformance.report.markdown import render_markdown

FILES: dict[str, Callable[[RunRecord], str]] = {
    "report.json": render_json,
    "report.md": render_markdown,
    "junit.xml": render_junit,
    "report.html": render_html,
}


def write_reports(record: RunRecord, folder: Path) -> list[Path]:
    """Write them; without jinja2 the HTML page is left out. Raises OSError for a folder that cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, render in FILES.items():
        try:
            text = render(record)
        except ReportExtraError:
            continue
        written.append(write_whole(folder / name, text))
    return written


def write_whole(path: Path, text: str) -> Path:
    """Write beside the file and rename, so that nobody reads half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path
