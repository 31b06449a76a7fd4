"""`Failure`: a typed error as the user sees it: one red message on stderr, what to do next, exit code 2."""

from __future__ import annotations

import os
import sys
from typing import IO, Any

import click

from attn_backends.errors import AttnBackendsError

# By the name of the class, so that classes of modules that were not needed are not imported for it.
HINTS = {
    "UnknownBackendError": "`attn-backends list` shows every backend",
    "RequestError": "`attn-backends explain --help` lists every field and what is legal",
    "ConfigError": "a config is a Hugging Face config.json; `attn-backends plan --help` says more",
    "PolicyError": "docs/policy.md lists every key; `attn-backends doctor` shows the knobs that are set",
    "ManifestError": "docs/manifest.md lists every key, docs/axes.md every axis",
    "UnknownIdError": "`attn-backends log show` lists the decisions",
}


class Failure(click.ClickException):
    """What went wrong, and what to do next."""

    exit_code = 2

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    @classmethod
    def of(cls, error: AttnBackendsError) -> Failure:
        """The message of a typed error; its own hint goes before the usual one, unless the message has it already."""
        own = getattr(error, "hint", None)
        if own:
            return cls(str(error), None if own in str(error) else own)
        hints = (HINTS.get(kind.__name__) for kind in type(error).__mro__)
        return cls(str(error), next((hint for hint in hints if hint), None))

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it."""
        _say("error", self.format_message(), "red", file)
        if self.hint:
            _say("hint", self.hint, "bright_black", file)


def show_warning(message: Warning | str, *_where: Any, **_more: Any) -> None:
    """A Python warning as one line, without the source line that raised it."""
    _say("warning", str(message), "yellow", None)


def _say(label: str, text: str, colour: str, file: IO[Any] | None) -> None:
    stream = sys.stderr if file is None else file
    styled = click.style(f"{label}: ", fg=colour, bold=True) + click.style(text, fg=colour)
    click.echo(styled, file=stream, color=False if os.environ.get("NO_COLOR") else None)
