"""`attn-backends conformance self-test`: which planted bugs the suite finds here, and whether it fails right kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from attn_backends.cli.needs_torch import need_torch
from attn_backends.cli.options import json_option
from attn_backends.cli.screen import BAD, GOOD, console, print_json, text

if TYPE_CHECKING:
    from attn_backends.conformance.kill_matrix import KillMatrix


@click.command("self-test")
@click.option("--full-matrix", is_flag=True, help="Every item against every mutant, not up to the first kill.")
@json_option
@click.pass_context
def command(ctx: click.Context, full_matrix: bool, as_json: bool) -> None:
    """Test the suite itself: every planted bug must be found at `quick`, and no correct implementation may fail.

    Prints which item kills which mutant, the survivors first. Exits 1 if the suite is weak. Takes minutes.
    """
    matrix = measure(full_matrix=full_matrix)
    if as_json:
        print_json(matrix.to_json())
    else:
        headline, _, rest = str(matrix).partition("\n")
        click.echo(rest.strip("\n"))
        console().print(text((headline, GOOD if matrix.holds else BAD)), soft_wrap=True)
    if not matrix.holds:
        ctx.exit(1)


def measure(*, full_matrix: bool = False) -> KillMatrix:
    """The suite's strength, with a bar on stderr."""
    need_torch("the suite runs kernels")
    from attn_backends.cli.run_bar import RunBar
    from attn_backends.conformance.self_test import self_test

    with RunBar("self-test") as bar:
        return self_test(full_matrix=full_matrix, on_progress=bar.at)
