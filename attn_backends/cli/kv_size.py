"""`attn-backends kv-size CONFIG`: the KV cache of a model in bytes, how many sequences fit, and how long reading it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import click

from attn_backends.cli.options import CONFIG, DEVICE, Finite, json_option
from attn_backends.cli.question import device_name
from attn_backends.cli.screen import HEAD, NAME, QUIET, console, print_json, table, text

GIB = 2**30
SAID = {"context": "sequences of {} tokens (--context)", "batch": "a step of {} sequence (--batch)"}


@click.command("kv-size")
@click.argument("config", type=CONFIG)
@click.option("--device", "device", type=DEVICE, help="Pretend this device.  [this machine's, if it has a GPU]")
@click.option("--context", type=click.IntRange(min=1), help="Tokens of a sequence.  [8192, or the model's longest]")
@click.option("--page-size", type=click.IntRange(min=1), default=16, show_default=True, help="Tokens per page.")
@click.option("--batch", type=click.IntRange(min=1), help="Sequences of a decode step.  [1]")
@click.option(
    "--weights", "weights_gib", type=Finite(min=0), help="GiB that the weights take there.  [none are counted]"
)
@json_option
def command(as_json: bool, config: str, device: str | None, page_size: int, **given: Any) -> None:
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
    from attn_backends.planning.kv_size import kv_sizes, usual_context

    name = device_name(device)
    facts = Device.current() if name is None else Device.pretend(name)
    kinds = layer_kinds(load_config(config))
    usual = {"context": usual_context(kinds), "batch": 1, "weights_gib": 0.0}
    assumed = {name: value for name, value in usual.items() if given[name] is None}
    asked = given | assumed
    context, batch, weights = asked["context"], asked["batch"], asked["weights_gib"]
    found = kv_sizes(kinds, device=facts, context=context, page_size=page_size, batch=batch, weights=int(weights * GIB))
    if as_json:
        stores = [dataclasses.asdict(size) for size in found]
        print_json({
            "config": config, "device": facts.name, "weights_gib": weights, "context": context, "page_size": page_size,
            "batch": batch, "assumed": assumed, "stores": stores,
        })  # fmt: skip
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
    for note in _notes(assumed):
        screen.print(text((note, QUIET)))


def _notes(assumed: dict[str, Any]) -> Iterator[str]:
    """What the numbers stand on; `assumed`: what the command line left unsaid."""
    read = "the cache" if "weights_gib" in assumed else "weights and cache"
    yield f"a step reads {read} once, at the device's full bandwidth"
    if "weights_gib" in assumed:
        yield "no weights are counted, neither in memory nor in a step: --weights GIB"
    said = [SAID[name].format(value) for name, value in assumed.items() if name in SAID]
    if said:
        yield f"assumed: {', '.join(said)}"


def _bytes(number: int) -> str:
    """1.5 MiB."""
    for unit, size in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} B"
