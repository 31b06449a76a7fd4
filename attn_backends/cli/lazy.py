"""`LazyGroup`: a click group that imports a command when it runs, and turns typed errors into one message and exit 2."""

from __future__ import annotations

import errno
import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from attn_backends.cli.failure import Failure, show_warning
from attn_backends.errors import AttnBackendsError


@dataclass(frozen=True, slots=True)
class Door:
    """Where a command is (its module's `command`), and its one line of help, so that help imports nothing."""

    module: str
    help: str


class LazyGroup(click.Group):
    """A group whose commands stand behind doors."""

    def __init__(self, *args: Any, doors: Mapping[str, Door], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.doors = doors

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table, which goes from the simple to the special."""
        return list(self.doors)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        door = self.doors.get(cmd_name)
        if door is None:
            return None
        command: click.Command = importlib.import_module(door.module).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest names for a mistyped command."""
        name = args[0]
        if name not in self.doors and not name.startswith("-") and not ctx.resilient_parsing:
            from attn_backends.box import nearest_names

            ctx.fail(f"no command {name!r}; {nearest_names(name, self.doors)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line per command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, door.help) for name, door in self.doors.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what it raises on purpose becomes a message, what it warns of a line on stderr."""
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            try:
                return super().invoke(ctx)
            except AttnBackendsError as error:
                raise Failure.of(error) from error
            except OSError as error:
                if error.errno == errno.EPIPE:
                    raise
                raise Failure(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
