"""The evidence of a decision on the screen: its level, its counts, its conversions and its kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attn_backends.cli.screen import GOOD, QUIET, WARN, text
from attn_backends.selector.log.evidence import phrase
from attn_backends.selector.log.phrase import printable

if TYPE_CHECKING:
    from rich.text import Text

MOST_KERNELS = 8


def evidence_lines(evidence: Mapping[str, Any] | None) -> Iterator[tuple[str, str | Text]]:
    """Lines of facts; one where nothing ran."""
    yield "evidence", text((phrase(evidence), WARN if evidence is None else GOOD))
    if evidence is None:
        return
    if evidence["conversions"]:
        moved = (f"{printable(name)} {size:,} bytes" for name, size in evidence["conversions"].items())
        yield "converted", ", ".join(moved)
    for kernel in evidence["kernels"][:MOST_KERNELS]:
        counts = f"{kernel['count']:,} times, {kernel['us']:,.1f} us"
        replayed = f", {kernel['replayed']:,} of them in replays" if kernel["replayed"] else ""
        yield f"  {kernel['device']} kernel", text(printable(kernel["name"]), (f"  {counts}{replayed}", QUIET))
    if len(evidence["kernels"]) > MOST_KERNELS:
        yield "", text((f"and {len(evidence['kernels']) - MOST_KERNELS} more kernels (--json)", QUIET))
