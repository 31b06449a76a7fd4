"""`Trimming`: takes the blanks off the ends of lines, with which rich fills its tables to the width of the screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.segment import Segment


class Trimming(RenderHook):
    """A hook of a console, for everything that is printed on it."""

    def process_renderables(self, renderables: Sequence[RenderableType]) -> list[ConsoleRenderable]:
        """Wrap each."""
        return [_Trimmed(one) for one in renderables]


@dataclass(frozen=True, slots=True)
class _Trimmed:
    inner: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The same, trimmed."""
        yield from _trimmed(console.render(self.inner, options))


def _trimmed(segments: Iterable[Segment]) -> Iterator[Segment]:
    held: list[Segment] = []  # blanks that may turn out to end the line
    for segment in segments:
        if segment.control:
            yield segment
            continue
        for piece in segment.text.splitlines(keepends=True):
            words = piece.rstrip()
            ends = piece.endswith("\n")
            if words:
                yield from held
                held = []
                yield Segment(words, segment.style)
            if ends:
                held = []
                yield Segment("\n")
            elif blanks := piece[len(words) :]:
                held.append(Segment(blanks, segment.style))
    yield from held
