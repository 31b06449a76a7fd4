"""`Reason`: why a backend may not serve a request, as a record. Text is rendered from it, never parsed out of it.

Part of the light core: standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that keeps a backend from serving a request.

    `code` is one of `reason_codes()`; `got` is the request's value on `axis`, `want` the declared set or bound printed
    exactly; `source` names the manifest entry, policy or data file that decided; `hint` says what to do about it.
    """

    code: str
    axis: str
    got: Any
    want: str
    message: str = ""
    source: str = ""
    hint: str | None = None

    def __str__(self) -> str:
        text = self.message or f"{self.axis}: got {show(self.got)}, want {self.want}"
        return f"{text} ({self.hint})" if self.hint else text

    def to_json(self) -> dict[str, Any]:
        """Plain values only; tuples become lists."""
        return {
            "code": self.code,
            "axis": self.axis,
            "got": plain(self.got),
            "want": self.want,
            "message": str(self.message or f"{self.axis}: got {show(self.got)}, want {self.want}"),
            "source": self.source,
            "hint": self.hint,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Reason:
        """Rebuild a record written by `to_json`; lists become tuples again."""
        return cls(**{**data, "got": frozen(data["got"])})


def show(value: Any) -> str:
    """Print a value the way manifests write it: `true`, `none`, `9.0`, `64`, `(512, 512)`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(show(item) for item in value) + ")"
    return str(value)


def plain(value: Any) -> Any:
    """Tuples to lists, anything exotic to its text, so that JSON keeps it."""
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def frozen(value: Any) -> Any:
    """Lists to tuples, all the way down."""
    return tuple(frozen(item) for item in value) if isinstance(value, list) else value
