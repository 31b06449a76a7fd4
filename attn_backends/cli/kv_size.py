"""`attn-backends kv-size CONFIG`: the KV cache of a model in bytes, how many sequences fit, and how long reading it takes."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from attn_backends.cli.options import CONFIG, DEVICE, Finite, json_option
from attn_backends.cli.question import device_name
from attn_backends.cli.screen import HEAD, NAME, QUIET, console, print_json, table, text

GIB = 2**30


@click.command("kv-size")
@click.argument("config", type=CONFIG)
@click.option("--device", "device", type=DEVICE, help="Pretend this device.  [this machine's, if it has a GPU]")
@click.option("--context", type=click.IntRange(min=1), help="Tokens of a sequence.  [8192, or the model's longest]")
@click.option("--page-size", type=click.IntRange(min=1), default=16, show_default=True, help="Tokens per page.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Sequences of a decode step.")
@click.option("--weights", type=Finite(min=0), default=0.0, show_default=True, help="GiB that the weights take there.")
@json_option
def command(as_json: bool, config: str, device: str | None, weights: float, **sizes: Any) -> None:
    """How large a model's KV cache is under each storage format.

    Bytes of a token and of a sequence, how many sequences fit the device beside the weights, and the time that no
    decode step stays under, since it reads all of that once. CONFIG is a Hugging Face config.json, a folder that holds
    one, or the name of a shipped config. Layers with a window keep as many pages as it spans.

    \b
    attn-backends kv-size llama-3.1-8b --device h200 --context 32768 \\
        --weights 15 --batch 64
    """  # noqa: D301  # \b is how click is told not to fill a paragraph
    from attn_backends.device import Device
    from attn_backends.planning import layer_kinds, load_config
    from attn_backends.planning.kv_size import kv_sizes

    name = device_name(device)
    facts = Device.current() if name is None else Device.pretend(name)
    found = kv_sizes(layer_kinds(load_config(config)), device=facts, weights=int(weights * GIB), **sizes)
    if as_json:
        stores = [dataclasses.asdict(size) for size in found]
        print_json({"config": config, "device": facts.name, "weights_gib": weights, **sizes, "stores": stores})
        return
    screen = console()
    screen.print(text((config, NAME), f" on {facts.name}"))
    screen.print("")
    rows = table("stored", "per token", "per sequence", "sequences", "step")
    for size in found:
        rows.add_row(
            text((size.store, HEAD)), _bytes(size.bytes_per_token), _bytes(size.bytes_per_sequence),
            "?" if size.sequences is None else f"{size.sequences:,}",
            "?" if size.step_seconds is None else f"{size.step_seconds * 1e3:.3g} ms",
        )  # fmt: skip
    screen.print(rows)
    screen.print("")
    screen.print(text(("a step reads weights and cache once, at the device's full bandwidth", QUIET)))


def _bytes(number: int) -> str:
    """1.5 MiB."""
    for unit, size in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} B"
