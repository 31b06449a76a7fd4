"""`attn-backends quantization-error`: what each way to quantise q, K and V costs in accuracy, on drawn or given tensors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attn_backends.cli.needs_torch import need_torch
from attn_backends.cli.options import POSITIVE, Finite, json_option
from attn_backends.cli.screen import print_json

if TYPE_CHECKING:
    from attn_backends.error_budget.budget import ErrorBudget

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_COUNT = click.IntRange(min=1)


@click.command("quantization-error")
@click.option("--file", type=FILE, help="q, k and v by torch.save, [B, S, H, D] each.  [drawn]")
@click.option("--layout", type=click.Choice(["bshd", "bhsd"]), default="bshd", show_default=True, help="Of the file.")
@click.option("--seq", type=_COUNT, default=2048, show_default=True, help="Tokens of what is drawn.")
@click.option("--head-dim", type=_COUNT, default=128, show_default=True, help="Width of its heads.")
@click.option("--heads", type=_COUNT, default=4, show_default=True, help="Its query heads.")
@click.option("--kv-heads", type=_COUNT, help="Its KV heads.  [as many]")
@click.option(
    "--outliers",
    type=Finite(0, 1),
    default=0.0,
    show_default=True,
    help="Share of its numbers that N(0, 100) is added to.",
)
@click.option("--causal", is_flag=True, help="Later keys are hidden.")
@click.option("--rows", type=_COUNT, default=64, show_default=True, help="Query rows per head that are computed.")
@click.option("--budget", type=POSITIVE, help="Largest relative error that is acceptable.")
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Of the numbers and the rotation."
)
@click.option("--device", default="cpu", show_default=True, help="Where it is computed: cpu, cuda, cuda:1.")
@json_option
def command(as_json: bool, budget: float | None, **given: Any) -> None:
    """What storing q, K and V in 8 bits costs in accuracy, before any kernel runs.

    Every option is held against float64 on a sample of the rows. The error is relative: of the outputs' difference to the
    outputs, root mean square over all of them. With --budget the cheapest options that keep it are named.

    \b
    attn-backends quantization-error --head-dim 128 --causal --outliers 0.001
    attn-backends quantization-error --file layer17.pt --budget 0.02
    """  # noqa: D301  # \b is how click is told not to fill a paragraph
    if budget is not None and not math.isfinite(budget):
        raise click.BadParameter(f"{budget} is no finite number.", param_hint="'--budget'")
    found = _estimated(given)
    if as_json:
        within = None if budget is None else [one.name for one in found.within(budget)]
        print_json({**found.to_json(), "budget": budget, "within": within})
        return
    from attn_backends.cli.quantization_error_view import print_budget

    print_budget(found, budget)


def _estimated(given: dict[str, Any]) -> ErrorBudget:
    need_torch("errors are estimated on tensors")
    from attn_backends.error_budget.estimate import quantization_error
    from attn_backends.error_budget.samples import check_device, drawn, loaded

    seed, device, layout = given["seed"], given["device"], given["layout"]
    check_device(device)
    if given["file"] is not None:
        tensors = loaded(given["file"], device)
    else:
        layout = "bshd"
        tensors = drawn(
            batch=1, seq=given["seq"], heads=given["heads"], kv_heads=given["kv_heads"] or given["heads"],
            head_dim=given["head_dim"], outliers=given["outliers"], seed=seed, device=device,
        )  # fmt: skip
    return quantization_error(*tensors, layout=layout, causal=given["causal"], rows=given["rows"], seed=seed)
