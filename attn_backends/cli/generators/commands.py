"""`docs/cli.md`: the help of every command, as the terminal shows it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from attn_backends.cli.generators.markdown import page
from attn_backends.cli.main import PROGRAM, cli

WIDTH = 100
HELP = ["-h", "--help"]
INTRO = f"The help of every command. `{PROGRAM} completion bash|zsh|fish` makes a shell complete them."


def render() -> str:
    """The page."""
    return page("Command line", INTRO, *_sections(cli, None, PROGRAM))


def _sections(command: click.Command, parent: click.Context | None, name: str) -> Iterator[str]:
    with click.Context(
        command, parent=parent, info_name=name, color=False, terminal_width=WIDTH, help_option_names=HELP
    ) as ctx:
        lines = [line.rstrip() for line in command.get_help(ctx).splitlines()]
        yield f"## {ctx.command_path}\n\n```text\n" + "\n".join(lines) + "\n```"
        if isinstance(command, click.Group):
            for below in command.list_commands(ctx):
                found = command.get_command(ctx, below)
                if found is not None:
                    yield from _sections(found, ctx, below)
