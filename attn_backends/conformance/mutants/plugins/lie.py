"""`Lie`: something that is not what it says, and the word by which the suite, or the host, must tell."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from attn_backends.conformance.kill_matrix import MutantRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What was seen: an outcome or a reason code; `by`: the item or the rig; PASS where nothing was."""

    word: str
    by: str = ""
    message: str = ""


NOTHING = Told(word="PASS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lie:
    """`tell` finds the lie out; `expected` is the word that it must come back with, any other is no kill."""

    name: str
    clause: str
    note: str
    expected: str
    tell: Callable[[], Told]

    def tried(self) -> MutantRecord:
        """The lie as a line of the matrix."""
        started = time.perf_counter()
        told = self.tell()
        found = told.word == self.expected
        return MutantRecord(
            name=self.name, clause=self.clause, note=self.note, killers=(f"{told.word}: {told.by}",) if found else (),
            own=found, tried=1, message=f"{told.word} {told.message}", seconds=time.perf_counter() - started,
        )  # fmt: skip


def lie(clause: str, expected: str) -> Callable[[Callable[[], Told]], Lie]:
    """A lie of the decorated function, which tells it; the docstring says what the lie is."""

    def made(tell: Callable[[], Told]) -> Lie:
        return Lie(name=tell.__name__, clause=clause, note=(tell.__doc__ or "").strip(), expected=expected, tell=tell)

    return made
