"""`attn-backends regret`: what the selector's picks cost beside the best ones, on shapes that nobody tuned for."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attn_backends.bench.suites import SIZES
from attn_backends.cli.failure import Failure
from attn_backends.cli.options import POSITIVE, json_option
from attn_backends.cli.screen import print_json

if TYPE_CHECKING:
    from attn_backends.bench.results import Results

SHAPES_FILE = "held-out.json"


@click.command("regret")
@click.option("--seed", type=click.IntRange(0), help="Of the shapes and inputs.  [that of the file, else drawn]")
@click.option("--minutes", type=POSITIVE, help="Stop after so long; run again to go on.")
@click.option("--device", help="cuda, cuda:1 or cpu.  [the GPU where there is one]")
@click.option("--size", type=click.Choice(SIZES), help="small draws few shapes.  [full; small on a CPU]")
@click.option(
    "--database",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Measured times to judge; a regret.json has those that it was judged by.  [this machine's]",
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the files.  [benchmarks/results/DEVICE]"
)
@click.option("--processes", type=click.IntRange(0, 256), default=0, help="So many compile ahead, side by side.  [0]")
@click.option("--fresh", is_flag=True, help="Begin anew, whatever lies there.")
@click.option("--judge-only", is_flag=True, help="Time nothing: judge the shapes that the file has.")
@json_option
@click.pass_context
def command(ctx: click.Context, /, as_json: bool, **given: Any) -> None:
    """How much slower the picks are than the best possible ones.

    Shapes of every phase are drawn from a seed, between the sizes of the calibration grid. Every backend that fits is
    checked and timed on them in turn; held-out.json is saved after each, so that a second run goes on. Then the picks of
    today are judged: by measured times, by the cost model alone, by priorities alone. Writes regret.json besides.

    \b
    attn-backends calibrate --minutes 5
    attn-backends regret --minutes 4 --seed 7 --processes 15
    """  # noqa: D301  # \b is how click is told not to fill a paragraph
    from attn_backends.calibrate.regret import report
    from attn_backends.cli.bench_order import default_folder, torch_device
    from attn_backends.cli.regret_view import print_report
    from attn_backends.registry.registry import default_registry

    device = torch_device(given["device"])
    folder = given["out"] or default_folder(device)
    times = _times(given["database"])
    results, left = _shapes(ctx, device, folder / SHAPES_FILE, given)
    made = report(results, default_registry(), times)
    record = {**made.to_json(), "shapes_left": left}
    (folder / "regret.json").write_text(_text(record), encoding="utf-8")
    if as_json:
        print_json(record)
    else:
        print_report(made, left, folder / "regret.json")


def _shapes(ctx: click.Context, device: Any, path: Path, given: dict[str, Any]) -> tuple[Results, int]:
    """The file of timed shapes, gone on with unless it is only to be judged; and how many are left."""
    from attn_backends.bench.results import Results

    if given["judge_only"]:
        if not path.exists():
            raise Failure(
                f"no {path.name} to judge in {path.parent}", "name its folder with --out, or leave --judge-only out"
            )
        return Results.read(path), 0
    from attn_backends.calibrate.regret_run import time_held_out
    from attn_backends.cli.bench import typed
    from attn_backends.cli.bench_progress import listener
    from attn_backends.cli.run_bar import RunBar

    minutes = given["minutes"]
    with RunBar("held-out shapes") as bar:
        ran = time_held_out(
            path=path, device=device, seed=_seed(path, given), fresh=given["fresh"], command=typed(ctx),
            size=given["size"] or ("small" if device.type == "cpu" else "full"), progress=listener(bar),
            deadline=None if minutes is None else time.monotonic() + 60 * minutes, processes=given["processes"],
        )  # fmt: skip
    return ran.results, len(ran.left)


def _seed(path: Path, given: dict[str, Any]) -> int:
    from attn_backends.bench.results import Results
    from attn_backends.cli.bench_order import MOST_SEED

    if given["seed"] is not None:
        return int(given["seed"])
    if path.exists() and not given["fresh"]:
        return int(Results.read(path).head["seed"])
    return secrets.randbelow(MOST_SEED)


def _times(path: Path | None) -> Any:
    from attn_backends.selector.measured.standing import machine_times, stored_times

    if path is not None and path.suffix == ".json":
        return _kept_times(path)
    return machine_times() if path is None else stored_times(path)


def _kept_times(path: Path) -> Any:
    import json

    from attn_backends.calibrate.kept import kept_times

    try:
        return kept_times(json.loads(path.read_text(encoding="utf-8"))["calibrated"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Failure(f"{path.name} has no calibrated times", "give the file of a calibration, or none") from error


def _text(record: Any) -> str:
    import json

    return json.dumps(record, indent=1) + "\n"
