"""What a benchmark tells of itself, on the bar of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attn_backends.bench.suite_run import Progress
    from attn_backends.cli.run_bar import RunBar


def listener(bar: RunBar) -> Progress:
    """Cells that are done, and what is being done."""
    from attn_backends.bench.suite_run import Progress

    return Progress(on_cell=lambda done, of, _record: bar.at(done, of), watch=bar.doing)
