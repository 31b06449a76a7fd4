"""`Requires`: one `requires` entry such as `torch>=2.6`, read with `packaging`.

The plain form, a name and a specifier, needs only its specifiers; extras and markers load its whole requirement parser,
which costs more than all the rest of listing the backends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet

_PLAIN = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*([<>=!~][^;@\[\]]*)?\s*")


@dataclass(frozen=True, slots=True)
class Requires:
    """A distribution and the versions of it that will do; `applies` is False where a marker excludes this Python."""

    text: str
    name: str
    specifier: SpecifierSet
    applies: bool = True

    def __str__(self) -> str:
        return self.text


def read_requires(text: str) -> Requires:
    """Read one entry. Raises ValueError with what is wrong."""
    plain = _PLAIN.fullmatch(text)
    try:
        if plain is not None:
            return Requires(text, plain[1], SpecifierSet(plain[2] or ""))
        return _read_whole(text)
    except InvalidSpecifier as error:
        raise ValueError(f"{text!r}: {error}") from None


def _read_whole(text: str) -> Requires:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        found = Requirement(text)
    except InvalidRequirement as error:
        raise ValueError(f"{text!r}: {error}") from None
    return Requires(text, found.name, found.specifier, found.marker is None or found.marker.evaluate())
