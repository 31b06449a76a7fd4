"""`attn-backends bench`: every installed backend on the same inputs, checked, timed in turn, beside the roofline."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from attn_backends.bench.suites import SIZES, suite_names
from attn_backends.cli.options import POSITIVE, json_option
from attn_backends.cli.screen import print_json

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("bench")
@click.option(
    "--suite", "suites", type=click.Choice(suite_names()), multiple=True, help="Run this one; may be repeated.  [all]"
)
@click.option("--backends", metavar="A,B", help="These, references included.  [all that are installed, but references]")
@click.option("--without", metavar="A,B", help="Not these.")
@click.option(
    "--cells", "patterns", multiple=True, metavar="WORDS|GLOB",
    help="Only cells that hold all these words, or match: 'd128 causal', 'd64 s*'; may be repeated.",
)  # fmt: skip
@click.option("--device", help="cuda, cuda:1 or cpu.  [the GPU where there is one]")
@click.option("--size", type=click.Choice(SIZES), help="small shapes try the whole way.  [full; small on a CPU]")
@click.option("--minutes", type=POSITIVE, help="Stop after so long; run again to go on.")
@click.option("--seed", type=click.IntRange(0), help="Of the inputs.  [that of the file, else drawn and recorded]")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the files.  [benchmarks/results/DEVICE]"
)
@click.option("--fresh", is_flag=True, help="Begin anew, whatever lies there.")
@click.option("--against", type=FILE, help="Show what changed since this results file.")
@click.option("--peers-figures", type=FILE, help="Recorded times of peers: one that is over 10 % slower voids the run.")
@click.option("--list", "list_only", is_flag=True, help="List the cells and run nothing.")
@json_option
@click.pass_context
def command(ctx: click.Context, /, list_only: bool, as_json: bool, **given: Any) -> None:
    """Compare backends on this machine.

    A cell is one shape. Each backend that takes it is called through attention() and checked against a float64 reference,
    then all are timed in turn: on the device by CUDA events with a cold L2 cache, on the host by its clock. What refuses,
    fails, is wrong or runs out of memory is recorded, and the rest goes on. After every cell the file is saved, so that a
    second run goes on with what is missing, if versions and seed agree.

    Writes SUITE.json and SUITE.html (plots). Exits 1 if a backend was wrong or failed, if --against found something slower
    beyond the spread, or if the run is void.

    \b
    attn-backends bench --suite prefill --minutes 5
    attn-backends bench --suite decode --cells 'c8192 dense' \\
        --against main/decode.json
    """  # noqa: D301  # \b is how click is told not to fill a paragraph
    from attn_backends.cli.bench_order import Order

    order = Order.of(given, command=typed(ctx))
    if list_only:
        _list(order, as_json)
        return
    from attn_backends.cli.bench_outcome import outcomes
    from attn_backends.cli.bench_view import print_outcome

    found = []
    for outcome in outcomes(order):
        found.append(outcome)
        if not as_json:
            print_outcome(outcome)
    if as_json:
        print_json([outcome.to_json() for outcome in found])
    if not all(outcome.good for outcome in found):
        ctx.exit(1)


def typed(ctx: click.Context) -> str:
    """The command as it can be typed again, without folders of this machine."""
    from attn_backends.selector.log.scrub import scrub_text

    words = ["attn-backends", str(ctx.info_name)]
    for param in ctx.command.params:
        if ctx.get_parameter_source(param.name) is not ParameterSource.COMMANDLINE:
            continue
        value = ctx.params[param.name]
        for one in value if isinstance(value, tuple) else (value,):
            words += [param.opts[-1]] if isinstance(one, bool) else [param.opts[-1], str(one)]
    return scrub_text(shlex.join(words))


def _list(order: Any, as_json: bool) -> None:
    """The cells that would be run, suite by suite."""
    cells = {suite.name: [cell.id for cell in order.cells_of(suite)] for suite in order.suites}
    if as_json:
        print_json(cells)
        return
    for suite in order.suites:
        click.secho(f"{suite.name} ({suite.size}): {suite.doc}", bold=True)
        click.echo("\n".join(f"  {name}" for name in cells[suite.name]) or "  (no shapes: what it calls is fixed)")
