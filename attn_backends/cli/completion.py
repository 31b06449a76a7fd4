"""`attn-backends completion SHELL`: the script that makes a shell complete commands, options, backends and devices."""

from __future__ import annotations

import click

from attn_backends.cli.failure import Failure
from attn_backends.cli.options import json_option
from attn_backends.cli.screen import print_json

VARIABLE = "_ATTN_BACKENDS_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
def command(shell: str, as_json: bool) -> None:
    """Print the completion script of a shell.

    \b
    bash  attn-backends completion bash > \\
              ~/.local/share/bash-completion/completions/attn-backends
    zsh   attn-backends completion zsh > "${fpath[1]}/_attn-backends"
    fish  attn-backends completion fish > \\
              ~/.config/fish/completions/attn-backends.fish
    """  # noqa: D301  # \b is how click is told not to fill a paragraph
    script = script_of(shell)
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        click.echo(script)


def script_of(shell: str) -> str:
    """The script as text; unlike click's own door it asks the shell nothing, so that it can be made anywhere."""
    from click.shell_completion import get_completion_class

    from attn_backends.cli.main import PROGRAM, cli

    made = get_completion_class(shell)
    if made is None:
        raise Failure(f"no completion for {shell}; there is {', '.join(SHELLS)}")
    completion = made(cli, {}, PROGRAM, VARIABLE)
    return completion.source_template % completion.source_vars()
