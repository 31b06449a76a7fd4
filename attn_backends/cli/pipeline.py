"""`attn-backends pipeline`: what a warp-specialised attention pipeline takes from a multiprocessor, and how it overlaps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attn_backends.cli.failure import Failure
from attn_backends.cli.options import Name, json_option
from attn_backends.cli.screen import console, print_json
from attn_backends.pipeline.chip import CHIPS, HOPPER

BYTES = {"bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
POSITIVE = click.IntRange(min=1)


def modelled() -> list[str]:
    """What `--device` takes: chips, then the known devices that have one."""
    from attn_backends.cli.piped import modelled_devices

    return [*CHIPS, *modelled_devices()]


@click.command("pipeline")
@click.option("--head-dim", type=POSITIVE, required=True, help="Width of q, k and v.")
@click.option("--dtype", type=click.Choice(list(BYTES)), default="bfloat16", help="Of q, k and v.  [bfloat16]")
@click.option(
    "--device", type=Name("device", modelled), help="Whose multiprocessor: hopper, blackwell, h200, sm_100.  [hopper]"
)
@click.option("--chip", type=Name("device", modelled), hidden=True, help="What --device was called before.")
@click.option("--q-tiles", type=click.IntRange(1, 4), help="Query tiles per block of threads.  [1 and 2]")
@click.option("--s-stages", type=click.IntRange(1, 2), help="Tiles of scores per query tile.  [1 and 2]")
@click.option("--keys", type=POSITIVE, help="Keys per step.  [128; 64 for heads above 128]")
@click.option("--stages", type=POSITIVE, default=2, help="Steps of K and of V that are kept.  [2]")
@click.option("--q-registers", is_flag=True, help="Queries live in registers.")
@click.option("--shared-out", is_flag=True, help="The output leaves through Q's memory.")
@click.option("--causal", is_flag=True, help="With a diagonal: masked tiles, and query tiles of unequal lengths.")
@click.option("--steps", type=click.IntRange(1, 64), default=6, help="Steps to draw.  [6]")
@click.option("--seq", type=POSITIVE, help="Also the blocks and waves of a call: its queries and keys ...")
@click.option("--heads", type=POSITIVE, default=64, help="... and its heads, over all sequences.  [64]")
@click.option("--svg", type=click.Path(file_okay=False, path_type=Path), help="Write each schedule there as a picture.")
@json_option
def command(as_json: bool, svg: Path | None, device: str | None, chip: str | None, **given: Any) -> None:
    """What a pipeline takes from a multiprocessor, and how its products, softmaxes and copies overlap.

    Four schedules unless one is asked for: serial; single Q, dual S (the next scores run under this softmax); dual Q
    (two query tiles alternate); both. Each with its budget of shared memory, registers, threads and tensor memory, the
    overlap that is possible ((Tm + Te) / max(Tm, Te)) and the one of the modelled schedule, and a drawing of it. Exits 1
    if nothing fits.

    \b
    attn-backends pipeline --head-dim 128
    attn-backends pipeline --head-dim 64 --q-tiles 3 --stages 3 --causal \\
        --seq 4096 --heads 256
    attn-backends pipeline --head-dim 128 --device b200 --svg pictures
    """  # noqa: D301  # \b is how click is told not to fill a paragraph
    from attn_backends.cli.piped import chip_of, piped

    asked = chip_of(device or chip or HOPPER.name)
    try:
        found = piped(chip=asked, element_bytes=BYTES[given.pop("dtype")], **given)
    except ValueError as error:
        raise Failure(str(error), "`attn-backends pipeline --help`") from error
    if svg is not None:
        _write(found, svg)
    if as_json:
        print_json({"schema": "attn.pipeline/1", "device": asked.name, "schedules": [one.to_json() for one in found]})
    else:
        from attn_backends.cli.pipeline_view import pipeline_view

        screen = console()
        for part in pipeline_view(found, screen.width):
            screen.print(part)
    if not any(one.budget.fits for one in found):
        raise SystemExit(1)


def _write(found: list[Any], folder: Path) -> None:
    from attn_backends.pipeline.drawing import draw_svg

    folder.mkdir(parents=True, exist_ok=True)
    for one in found:
        name = one.plan.name.replace(", ", "-").replace(" ", "-").lower()
        (folder / f"{name}.svg").write_text(draw_svg(one.timeline), encoding="utf-8")
