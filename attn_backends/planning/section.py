"""`Section`: one dict of a config, with typed look-ups by alias. Names of models are taken out before anybody can look.

It knows how to find and check a value, not what the value means. `planning` alone imports it.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from attn_backends.planning.aliases import CANONICAL, GROUPS, HARMLESS, KNOWN, NAMES, Aliases
from attn_backends.planning.errors import ConfigError

MAX_WHOLE = 2**40  # anything larger is a typing error, not a model
NEAR = 0.8  # likeness from which a key is taken for a misspelling
_UNDERSTOOD = KNOWN | HARMLESS
_ATTENTION_LIKE = re.compile(r"attn|attention|window|spars|softcap|sink|alibi|causal|bidirection|relative|chunk|_heads")


class Section:
    """One dict of a config; `where` says which, `notes` collects what had to be inferred.

    A key whose value is null counts as absent. Keys of a nested `attn_config` (and its like) are found as well.
    """

    def __init__(self, data: Mapping[str, Any], where: str = "config", parent: Section | None = None) -> None:
        self.where = where
        self.parent = parent
        self.notes: list[str] = []
        own = {key: value for key, value in data.items() if key not in NAMES}
        grouped = [own[group] for group in GROUPS if isinstance(own.get(group), dict)]
        self._values: dict[str, Any] = {key: value for one in grouped for key, value in one.items() if key not in NAMES}
        self._values.update({key: value for key, value in own.items() if value is not None or key not in self._values})

    def find(self, aliases: Aliases) -> tuple[str, Any] | None:
        """The first alias that is present and not null, with its value."""
        return next(((key, value) for key in aliases if (value := self._values.get(key)) is not None), None)

    def has(self, aliases: Aliases) -> bool:
        """Whether any alias is present and not null."""
        return self.find(aliases) is not None

    def whole(self, aliases: Aliases, least: int = 1) -> int | None:
        """A whole number of at least `least`, or None where absent."""
        found = self.find(aliases)
        if found is None:
            return None
        key, value = found
        if type(value) is not int or not least <= value <= MAX_WHOLE:
            raise self.wrong(key, value, f"a whole number >= {least}")
        return value

    def number(self, aliases: Aliases) -> float | None:
        """A finite number >= 0, or None where absent."""
        found = self.find(aliases)
        if found is None:
            return None
        key, value = found
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_WHOLE:
            raise self.wrong(key, value, "a finite number >= 0")
        return float(value)

    def flag(self, aliases: Aliases) -> bool | None:
        """True, false, or None where absent."""
        found = self.find(aliases)
        if found is None:
            return None
        key, value = found
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def word(self, aliases: Aliases) -> str | None:
        """A word in lower case, or None where absent or not text."""
        found = self.find(aliases)
        return found[1].lower() if found is not None and isinstance(found[1], str) else None

    def sizes(self, aliases: Aliases) -> tuple[int, ...] | None:
        """One whole number or a list of them (height, width), or None where absent."""
        found = self.find(aliases)
        if found is None:
            return None
        key, value = found
        if isinstance(value, dict) and {"height", "width"} <= set(value):
            value = [value["height"], value["width"]]
        numbers = value if isinstance(value, list) else [value]
        if not numbers or any(type(one) is not int or not 1 <= one <= MAX_WHOLE for one in numbers):
            raise self.wrong(key, value, "a whole number >= 1, or a list of them")
        return tuple(numbers)

    def entries(self, aliases: Aliases) -> list[Any] | None:
        """A list, or None where absent."""
        found = self.find(aliases)
        if found is None:
            return None
        if not isinstance(found[1], list):
            raise self.wrong(found[0], found[1], "a list")
        return found[1]

    def table(self, aliases: Aliases) -> Section | None:
        """A nested dict as a section, or None where absent or of another kind."""
        found = self.find(aliases)
        return Section(found[1], f"{self.where}.{found[0]}") if found and isinstance(found[1], dict) else None

    def tables(self) -> dict[str, dict[str, Any]]:
        """Every nested dict that is not a mere group of attention keys."""
        return {
            key: value
            for key, value in self._values.items()
            if isinstance(value, dict) and key not in GROUPS and all(isinstance(name, str) for name in value)
        }

    def inherited(self, aliases: Aliases) -> Any:
        """A value of this section or of the nearest one around it."""
        found = self.find(aliases)
        if found is None and self.parent is not None:
            return self.parent.inherited(aliases)
        return found[1] if found else None

    def require(self, *wanted: Aliases) -> None:
        """Raise ConfigError that names every missing key, what was looked for, and the key that looks like a misspelling."""
        missing = [aliases for aliases in wanted if not self.has(aliases)]
        if missing:
            text = "; ".join(self._looked_for(aliases) for aliases in missing)
            raise ConfigError(text, where=self.where, missing=tuple(_canonical(aliases) for aliases in missing))

    def _looked_for(self, aliases: Aliases) -> str:
        near = {key: score for key in self._values if (score := _likeness(key, aliases)) >= NEAR}
        text = f"missing key {_canonical(aliases)} (looked for {', '.join(aliases)})"
        return f"{text}; nearest key present: {max(near, key=lambda key: near[key])}" if near else text

    def wrong(self, key: str, value: Any, want: str) -> ConfigError:
        """The error of a key that is there and not legal."""
        return ConfigError(f"{key}: got {_shown(value)}; want {want}", where=self.where)

    def note(self, text: str) -> None:
        """Remember something that the config does not say outright."""
        if text not in self.notes:
            self.notes.append(text)

    def unread(self) -> tuple[str, ...]:
        """Keys that look like attention structure and that this reader does not know."""
        return tuple(
            key
            for key, value in sorted(self._values.items())
            if key not in _UNDERSTOOD
            and not key.endswith(("_token_id", "_token_index"))
            and _ATTENTION_LIKE.search(key)
            and not _is_off(value)
        )


def _canonical(aliases: Aliases) -> str:
    return CANONICAL.get(aliases, aliases[0])


def _is_off(value: Any) -> bool:
    return value is None or value is False or value == 0 or value in ("", [], {}) or isinstance(value, dict)


def _likeness(key: str, aliases: Iterable[str]) -> float:
    """How much `key` looks like a misspelling: not at all if it means something itself, or has a word more."""
    return 0.0 if key in _UNDERSTOOD else max(_alike(key, alias) for alias in aliases)


def _alike(key: str, alias: str) -> float:
    """Of the word that is least alike, as a word of its own means something of its own; whole where words run together."""
    words, meant = key.split("_"), alias.split("_")
    if len(words) > len(meant):
        return 0.0
    pairs = zip(words, meant, strict=True) if len(words) == len(meant) else [(key, alias)]
    return min(difflib.SequenceMatcher(None, written, wanted).ratio() for written, wanted in pairs)


def _shown(value: Any) -> str:
    text = "nan" if isinstance(value, float) and math.isnan(value) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
