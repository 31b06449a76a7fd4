"""`attn-backends new NAME`: a third-party backend as a project that works from the first minute."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from attn_backends.cli.options import json_option
from attn_backends.cli.screen import print_json


@click.command("new")
@click.argument("name")
@click.option("--dir", "folder", type=click.Path(path_type=Path, file_okay=False), help="Where to.  [./NAME]")
@json_option
def command(name: str, folder: Path | None, as_json: bool) -> None:
    """Write the project of a backend: pyproject, manifest, a small right kernel, conformance tests, CI, README.

    NAME is the backend's and its package's: lower case letters, digits and single underscores. Nothing is overwritten.
    """
    from attn_backends.conformance.scaffold.project import write_project

    place = folder or Path(name)
    written = write_project(name, place)
    if as_json:
        print_json({"folder": str(place), "files": [path.relative_to(place).as_posix() for path in written]})
        return
    for path in written:
        click.echo(path.as_posix())
    click.echo(
        f"\nNext: cd {shlex.quote(str(place))} && pip install -e '.[test]' && attn-backends conformance run {name}"
    )
