"""`attn-backends calibrate`: backends timed on this machine, so that ranking goes by what is measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attn_backends.capability import DTYPES
from attn_backends.cli.options import CONFIG, POSITIVE, json_option
from attn_backends.cli.screen import print_json

if TYPE_CHECKING:
    from attn_backends.calibrate.points import Points

MOST_PROCESSES = 15  # each has a context on the GPU


@click.command("calibrate")
@click.option("--config", type=CONFIG, help="The shapes of this model: a config.json, its folder, or a shipped name.")
@click.option("--log", "logs", type=click.Path(exists=True), multiple=True, help="The shapes of this decision log.")
@click.option("--context", type=click.IntRange(min=1), help="With --config: tokens in all.  [8192, or the model's]")
@click.option("--dtype", type=click.Choice(DTYPES), help="With --config: of q.  [the checkpoint's]")
@click.option("--minutes", type=POSITIVE, help="Stop after so long; run again to go on.")
@click.option("--backends", metavar="A,B", help="Only these.  [all that fit a shape, references apart]")
@click.option("--device", help="cuda, cuda:1 or cpu.  [the GPU where there is one]")
@click.option(
    "--database", type=click.Path(dir_okay=False, path_type=Path),
    help="File of the times.  [ATTN_BACKENDS_MEASUREMENTS, else the user's data folder]",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the inputs.  [0]")
@click.option(
    "--processes", type=click.IntRange(0, 256), help="So many compile ahead, side by side.  [one per core, at most 15]"
)
@click.option("--retry", is_flag=True, help="Try again what failed, hung or was left out before.")
@click.option("--fresh", is_flag=True, help="Forget the times of this device and software first.")
@click.option("--list", "list_only", is_flag=True, help="List the shapes and time nothing.")
@json_option
def command(list_only: bool, as_json: bool, **given: Any) -> None:
    """Time the backends of this machine, so that the measured fastest is chosen.

    Shapes come from a model's config, from a decision log, or are built in. Each backend runs in a process of its own: one
    that crashes or hangs is recorded and left out. Who is predicted far behind the best is not timed. Times are stored per
    device, driver, torch, triton, backend version and kernel sources; a second run goes on with what is missing. What is
    asked for by name or policy is never overridden.

    \b
    attn-backends calibrate --minutes 5
    attn-backends calibrate --config llama-3.1-8b --log ./decisions
    """  # noqa: D301  # \b is how click is told not to fill a paragraph
    from attn_backends.cli.bench_order import names_in, torch_device

    device = torch_device(given["device"])
    points = _points(device.type, given)
    if list_only:
        from attn_backends.cli.calibrate_list import listed, print_listed

        if as_json:
            print_json(listed(points))
        else:
            print_listed(points)
        return
    from attn_backends.calibrate.run import Plan, Progress, calibrate
    from attn_backends.cli.calibrate_view import print_ran
    from attn_backends.cli.run_bar import RunBar
    from attn_backends.host.dispatch import device_of
    from attn_backends.registry.registry import default_registry

    for name in names_in(given["backends"]) or ():
        default_registry().snapshot().get(name)
    plan = Plan(
        points=points.points, path=_database(given["database"]), device=str(device), facts=device_of(device),
        minutes=given["minutes"], backends=names_in(given["backends"]), seed=given["seed"], retry=given["retry"],
        fresh=given["fresh"], processes=_processes(given["processes"], device.type),
    )  # fmt: skip
    with RunBar("calibrate", len(points.points)) as bar:
        ran = calibrate(plan, Progress(on_point=bar.at, watch=bar.doing))
    if as_json:
        print_json({"file": plan.path.name, **ran.to_json(), "left_out": dict(points.left_out)})
    else:
        print_ran(ran, plan.path, points)


def _points(kind: str, given: dict[str, Any]) -> Points:
    """What was asked for, one after the other; the built-in shapes where nothing was."""
    from attn_backends.calibrate.points import joined, of_config, of_grid, of_records
    from attn_backends.cli.log_source import records_of
    from attn_backends.planning import load_config

    found = []
    if given["config"]:
        found.append(of_config(load_config(given["config"]), context=given["context"], dtype=given["dtype"]))
    if given["logs"]:
        found.append(of_records(records_of(given["logs"])))
    return joined(found) if found else of_grid(kind)


def _processes(asked: int | None, kind: str) -> int:
    """On a CPU nothing that is worth it is compiled, and timing needs the cores."""
    if asked is not None:
        return asked
    return 0 if kind == "cpu" else max(1, min(MOST_PROCESSES, (os.cpu_count() or 1) - 1))


def _database(named: Path | None) -> Path:
    from attn_backends.cli.failure import Failure
    from attn_backends.selector.measured.standing import database_path

    path = named or database_path()
    if path is None:
        raise Failure("ATTN_BACKENDS_MEASUREMENTS=0 says that no times are used", "unset it, or give --database FILE")
    return path
