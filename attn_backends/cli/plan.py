"""`attn-backends plan CONFIG`: which backend serves each kind of attention layer of a model, phase by phase, per device."""

from __future__ import annotations

from typing import Any

import click

from attn_backends.capability import DTYPES, FORMATS
from attn_backends.cli.failure import Failure
from attn_backends.cli.options import CONFIG, DEVICE, json_option, policy_options
from attn_backends.cli.question import device_name, policy_of
from attn_backends.cli.screen import console, print_json

PHASES = ("prefill", "append", "decode", "training")


@click.command("plan")
@click.argument("config", required=False, type=CONFIG)
@click.option(
    "--device", "devices", type=DEVICE, multiple=True, help="Pretend this device; may be repeated.  [this machine]"
)
@click.option("--phase", "phases", type=click.Choice(PHASES), multiple=True, help="Only this phase; may be repeated.")
@click.option("--context", type=click.IntRange(min=1), help="Tokens in all.  [8192, or the model's longest if shorter]")
@click.option(
    "--batch", type=click.IntRange(min=1), help="Sequences, in every phase.  [prefill 1, append 4, decode 32]"
)
@click.option("--page-size", type=click.IntRange(min=1), default=16, help="Tokens per page of the KV cache.  [16]")
@click.option("--kv-format", type=click.Choice(FORMATS), default="dense", help="Storage of the KV cache.  [dense]")
@click.option("--dtype", type=click.Choice(DTYPES), help="Of q.  [the checkpoint's]")
@policy_options
@click.option("--why", is_flag=True, help="Every backend that does not serve a call, with all its reasons.")
@click.option("--shipped", "list_shipped", is_flag=True, help="List the configs that come with the package.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, /, config: str | None, list_shipped: bool, why: bool, as_json: bool, **given: Any
) -> None:
    """Which backend serves each attention layer of a model, and why not the better-ranked ones.

    CONFIG is a Hugging Face config.json, a folder that holds one, or the name of a shipped config. Only structure is
    read, never the model's name. Exits 1 if some call has no backend.

    \b
    attn-backends plan gemma-2-9b-it --device h200 --device a100
    attn-backends plan ./my-model --phase decode --kv-format scaled-fp8-e4m3
    """  # noqa: D301  # \b is how click is told not to fill a paragraph
    if list_shipped:
        _print_shipped(as_json)
        return
    if config is None:
        raise Failure(
            "no CONFIG: a config.json, a folder that holds one, or a shipped name", "`attn-backends plan --shipped`"
        )
    from attn_backends.cli.planned import plan_config

    sizes = {name: given[name] for name in ("context", "batch", "page_size", "kv_format", "dtype")}
    plan = plan_config(
        config, [device_name(name) for name in given["devices"]] or [None], phases=given["phases"], sizes=sizes,
        policy=policy_of(given),
    )  # fmt: skip
    if as_json:
        print_json(plan.to_json())
    else:
        from attn_backends.cli.plan_view import plan_view

        screen = console()
        for part in plan_view(plan, width=screen.width, why=why):
            screen.print(part)
    if not plan.served:
        ctx.exit(1)


def _print_shipped(as_json: bool) -> None:
    from attn_backends.planning import shipped

    if as_json:
        print_json({"shipped": list(shipped())})
    else:
        click.echo("\n".join(shipped()))
