"""What holds for every command."""

from __future__ import annotations

import click
import pytest

from attn_backends.cli.completion import SHELLS
from attn_backends.cli.failure import show_warning
from attn_backends.cli.main import PROGRAM, cli


def commands(group=cli, path=(), parent=None):
    context = click.Context(group, info_name=PROGRAM, parent=parent)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name), context)
        else:
            yield (*path, name), command


COMMANDS = dict(commands())


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_takes_json_and_explains_itself(run, path):
    """--json is nowhere missing, and the help starts with a sentence."""
    assert any("--json" in param.opts for param in COMMANDS[path].params)
    result = run(*path, "--help")
    assert result.exit_code == 0
    assert COMMANDS[path].help


@pytest.mark.parametrize("path", [(), *COMMANDS], ids=" ".join)
def test_the_help_fits_a_terminal_of_80_columns(run, monkeypatch, path):
    """No line is left for the terminal to break, and an example that goes on says so."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(*path, "--help").stdout.splitlines()
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_line_in_the_list_matches_the_command(path):
    """The help that needs no import is about the right command."""
    group = cli
    context = click.Context(cli)
    for name in path[:-1]:
        group = group.get_command(context, name)
    assert group.doors[path[-1]].module.startswith("attn_backends.cli.")
    assert COMMANDS[path].name == path[-1]


def test_a_mistyped_command_gets_the_nearest(run):
    """Exit code 2."""
    result = run("explian")
    assert result.exit_code == 2
    assert "did you mean explain" in result.stderr


def test_version(run):
    """The package's own."""
    from attn_backends import __version__

    assert __version__ in run("--version").stdout


def test_a_warning_is_one_line_on_stderr(capsys):
    """An unknown knob, say: the sentence, without the source line that raised it, and stdout stays clean."""
    show_warning(UserWarning("mind the gap"), UserWarning, "some_file.py", 7)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "warning: mind the gap\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_scripts(run, run_json, shell):
    """Each names the variable that the program listens to."""
    assert "_ATTN_BACKENDS_COMPLETE" in run("completion", shell).stdout
    assert run_json("completion", shell)["shell"] == shell
