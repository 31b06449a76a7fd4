"""What may enter a log line: plain JSON values, free of user paths and addresses.

Free texts (the message of a failed import, say) can hold paths; of an absolute path only the last two components stay,
and nothing of a home folder's name. URLs stay. Standard library only; the sink is its only caller on the call path.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

_QUOTED = re.compile(r"""(["'`])((?:file://)?(?:/|~[\w.-]*/|[A-Za-z]:[\\/]|\\\\)[^"'`\n]*)\1""")
_WINDOWS = re.compile(r"(?<!\w)(?:[A-Za-z]:\\|\\\\)(?:[^\\/:*?\"'<>|,;\n]+\\)*[^\\/:*?\"'<>|,;\s()]*")
_POSIX = re.compile(
    r"(?:(?<![\w./~\\-])|(?<=\s-[ILF]))(?!//)"  # not in a word, URL or relative path; but behind a compiler's -I
    r"(?:file://)?(?:~[\w.-]*)?(?:/(?:[^\s/\\\"'`:,;()\[\]<>|=]|\\ )+)+/?"
)
_HOME = re.compile(r"(?:/(?:var/)?home/[^/]+|/Users/[^/]+|/root(?=/|$)|[A-Za-z]:/Users/[^/]+|~[\w.-]*)", re.IGNORECASE)
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{9,}\b")
_KEPT = 2  # components of a path that stay


def scrub(value: Any) -> Any:
    """A deep copy of plain JSON values with every text scrubbed.

    Tuples become lists; nan and infinities become None; an object of any other type becomes the name of its type, for
    its text might hold data.
    """
    if isinstance(value, str):
        return scrub_text(str.__str__(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {scrub_text(str(key)): scrub(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [scrub(item) for item in value]
    return f"<{type(value).__name__}>"


def scrub_text(text: str) -> str:
    """`text` with absolute paths cut to their last two components and memory addresses blanked."""
    if "0x" in text:
        text = _ADDRESS.sub("0x?", text)
    if "/" not in text and "\\" not in text:
        return text
    text = _QUOTED.sub(lambda match: match[1] + _shorten(match[2]) + match[1], text)
    text = _WINDOWS.sub(lambda match: _shorten(match[0]), text)
    return _POSIX.sub(lambda match: _shorten(match[0]), text)


def _shorten(path: str) -> str:
    """`/a/b/c/d.so` to `c/d.so`; a home folder counts as nothing, so `/home/me/d.so` becomes `d.so`."""
    plain = path.removeprefix("file://").replace("\\ ", " ").replace("\\", "/")
    home = _HOME.match(plain)
    parts = [part for part in plain[home.end() if home else 0 :].split("/") if part]
    if home:
        return "/".join(parts[-_KEPT:]) or "~"
    return "/".join(parts[-_KEPT:]) if len(parts) > 1 else path
