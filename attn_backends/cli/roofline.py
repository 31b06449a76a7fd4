"""`attn-backends roofline`: what bounds a call on a device, how fast it could be, how near each backend comes to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from attn_backends.cli.failure import Failure
from attn_backends.cli.options import CONFIG, json_option
from attn_backends.cli.question import QuestionCommand, question_options, question_params, read_question
from attn_backends.cli.request_flags import fields_given
from attn_backends.cli.screen import HEAD, console, print_json, text
from attn_backends.cli.shorthands import shorthand_fields
from attn_backends.device import Device

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("roofline", cls=QuestionCommand, params=question_params())
@question_options
@click.option("--config", type=CONFIG, help="Every call of a model: a config.json, its folder, or a shipped name.")
@click.option("--context", type=click.IntRange(min=1), help="With --config: tokens in all.")
@click.option(
    "--against",
    type=FILE,
    multiple=True,
    help="Judge the cost model by a results file of `bench` or `regret`; may be repeated.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    as_json: bool,
    config: str | None,
    context: int | None,
    against: tuple[Path, ...],
    **given: Any,
) -> None:
    """How fast a call could be on a device, and how near each backend is expected to come.

    The floor is the largest of four times: matrix products, exponentials, bytes, one launch, each at the device's stated
    peak. Predictions come from the shares of those peaks that backends declare. With --against, the cost model itself is
    judged: predicted over measured per backend, how often its first choice was the fastest, and the shares that would fit.

    \b
    attn-backends roofline --device h200 --causal --seq 8192 --head-dim 64
    attn-backends roofline --device h200 --config llama-3.1-8b --phase decode
    attn-backends roofline --against benchmarks/results/h200/prefill.json
    """  # noqa: D301  # \b is how click is told not to fill a paragraph
    if against:
        if given.get("request_file"):
            raise Failure(
                f"--against takes one file, and {given['request_file']} is another", "--against A --against B"
            )
        _refuse_questions(ctx)
        _judge(against, as_json)
        return
    from attn_backends.cli.roofed import roofed_config, roofed_question

    if config is not None:
        fields = {**shorthand_fields(given), **fields_given(ctx)}
        calls = roofed_config(config, given, fields, context)
        assumed: dict[str, Any] = {}
    else:
        question = read_question(ctx)
        calls, assumed = [roofed_question(question)], question.assumed
    if as_json:
        print_json({"schema": "attn.roofline/1", "calls": [call.to_json() for call in calls], "assumed": assumed})
        return
    from attn_backends.cli.roofline_view import roofline_view

    screen = console()
    for part in roofline_view(calls, assumed, screen.width):
        screen.print(part)


def _refuse_questions(ctx: click.Context) -> None:
    """A file has its own device and shapes; what is asked beside it would be answered with theirs."""
    asked = [
        param.opts[0]
        for param in ctx.command.params
        if param.name not in ("against", "as_json")
        and ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    ]
    if asked:
        raise Failure(
            f"{', '.join(asked)}: says nothing beside --against, which judges a file on the device and the shapes in it",
            "leave it out, or ask for the call without --against",
        )


def _judge(paths: tuple[Path, ...], as_json: bool) -> None:
    """The cost model's error on results files."""
    from attn_backends.bench.model_error import model_error
    from attn_backends.bench.results import Results
    from attn_backends.registry.registry import default_registry

    files = [Results.read(path) for path in paths]
    devices = {
        Device.from_json(file.head["device"]).describe(): path.name for path, file in zip(paths, files, strict=True)
    }
    if len(devices) > 1:
        told = ", ".join(f"{name} is of {device}" for device, name in devices.items())
        raise Failure(f"{told}: no share of one device's peaks fits both", "judge the files of one device at a time")
    error = model_error(files, default_registry().snapshot())
    if as_json:
        names = [path.name for path in paths]
        print_json({"schema": "attn.model_error/1", "files": names, "device": next(iter(devices)), **error.to_json()})
        return
    from attn_backends.cli.roofline_view import error_view

    screen = console()
    screen.print(text(("measured on  ", HEAD), next(iter(devices))))
    screen.print()
    for part in error_view(error, screen.width):
        screen.print(part)
