"""`python -m attn_backends.backends.triton_tiled.compile_table`: what the kernels cost on GPUs that need not be here.

Compiles what calls would launch and prints registers, spilled bytes, shared memory and seconds, one line per kernel.
Exit status 1 where a kernel spills or takes more shared memory than its row of configs.toml says.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from attn_backends.backends.triton_tiled.compile_calls import VARIANTS
from attn_backends.backends.triton_tiled.compile_only import compiled, target_of
from attn_backends.backends.triton_tiled.compile_plan import ARCHITECTURES, DTYPES, NVIDIA, WIDTHS, Item, items, sample
from attn_backends.backends.triton_tiled.configs import DIRECTIONS

# Hopper's matrix products from shared memory, loads through descriptors, and waits for products.
_COUNTED = ("HGMMA", "UTMALDG", "WARPGROUP.DEPBAR")


@click.command(context_settings={"max_content_width": 120})
@click.option("--arch", "archs", multiple=True, type=click.Choice(ARCHITECTURES), help="Default: NVIDIA's.")
@click.option(
    "--dtype", "dtypes", multiple=True, type=click.Choice(list(DTYPES)), help="Default: bfloat16 and float32."
)
@click.option(
    "--width", "widths", multiple=True, help="Head width, or of q and k / of v: 192/128. Default: 64, 128, 256."
)
@click.option(
    "--variant",
    "variants",
    multiple=True,
    type=click.Choice(list(VARIANTS)),
    help="Features of the call. Default: all.",
)
@click.option("--kernel", "kernels", multiple=True, type=click.Choice([*DIRECTIONS, "rows"]), help="Default: all.")
@click.option("--sample", "sampled", is_flag=True, help="Each row of configs.toml once; no other choice than --arch.")
@click.option("--instructions", is_flag=True, help=f"Count {', '.join(_COUNTED)} in the machine code.")
@click.option("--afresh", is_flag=True, help="Compile again what is in Triton's cache, for honest seconds.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def main(
    archs: tuple[str, ...], dtypes: tuple[str, ...], widths: tuple[str, ...], variants: tuple[str, ...],
    kernels: tuple[str, ...], sampled: bool, instructions: bool, afresh: bool, as_json: bool,
) -> None:  # fmt: skip
    """Compile the kernels for GPUs that need not be here, and say what they cost."""
    chosen = archs or tuple(NVIDIA)
    if sampled:
        plan: Iterable[Item] = (item for arch in chosen for item in sample(arch))
    else:
        pairs = tuple(map(_pair, widths)) or WIDTHS
        plan = items(chosen, dtypes or ("bfloat16", "float32"), pairs, variants or tuple(VARIANTS))
    plan = (item for item in plan if not kernels or item.launch.direction in kernels)
    show = _show_lines if as_json else _show_table
    sys.exit(1 if show(_measured(plan, instructions, afresh)) else 0)


def _pair(width: str) -> tuple[int, int]:
    qk, _slash, v = width.partition("/")
    return int(qk), int(v or qk)


def _measured(plan: Iterable[Item], instructions: bool, afresh: bool) -> Iterator[dict[str, Any]]:
    for item in plan:
        launch, row = item.launch, item.launch.config
        result = compiled(launch, target_of(item.arch), instructions=instructions, afresh=afresh)
        yield {
            "kernel": launch.direction,
            "arch": item.arch,
            "dtype": item.dtype,
            "widths": list(item.widths),
            "variant": item.variant,
            "tiles": f"{row.rows}x{row.columns}{' tma' if row.tma else ''}{' split' if row.split else ''}"
            if row
            else "",
            "warps": launch.options["num_warps"],
            "stages": launch.options["num_stages"],
            "registers": result.registers,
            "stack": result.stack,
            "shared": result.shared,
            "allowed": (row.shared or None) if row else None,
            "may_spill": row.spills if row else 0,
            "seconds": round(result.seconds, 2),
            **({name: result.instructions.count(name) for name in _COUNTED} if instructions else {}),
        }


def _bad(line: dict[str, Any]) -> bool:
    return line["stack"] > line["may_spill"] or (line["allowed"] is not None and line["shared"] > line["allowed"])


def _show_lines(lines: Iterable[dict[str, Any]]) -> int:
    bad = 0
    for line in lines:
        click.echo(json.dumps(line))
        bad += _bad(line)
    return bad


def _show_table(lines: Iterable[dict[str, Any]]) -> int:
    found = list(lines)
    table = Table(*(found[0] if found else ()), box=None)
    for line in found:
        cells = ["" if value is None else str(value) for value in line.values()]
        table.add_row(*cells, style="red" if _bad(line) else None)
    Console().print(table)
    bad = sum(map(_bad, found))
    click.echo(f"{len(found)} kernels, {bad} of them spill or take more shared memory than allowed")
    return bad


if __name__ == "__main__":
    main()
