"""`attn-backends explain`: which backend serves a request, and why not the others. Imports no torch, loads no kernel."""

from __future__ import annotations

import click

from attn_backends.cli.options import json_option
from attn_backends.cli.question import Question, QuestionCommand, question_options, question_params, read_question
from attn_backends.cli.screen import console, print_json
from attn_backends.reason import show


@click.command("explain", cls=QuestionCommand, params=question_params())
@question_options
@click.option("--all-reasons", is_flag=True, help="Every reason, with the manifest entry it comes from.")
@json_option
@click.pass_context
def command(ctx: click.Context, /, as_json: bool, all_reasons: bool, **_given: object) -> None:
    """Which backend serves a request, and why not the others.

    The request comes from flags, or from a JSON file (- is stdin) with flags laid over it. Flags that are left out mean
    --dtype bfloat16 --heads 32/8 --head-dim 128 --seq 4096 and what freshly allocated tensors have; the answer says so.
    --json prints the decision record, schema attn.decision/1. Exits 1 if nothing fits.

    \b
    attn-backends explain --device h200 --causal --softcap 50 --seq 8192
    attn-backends explain --device rtx_4090 --phase decode \\
        --page-size 16 --kv-format scaled-fp8-e4m3
    """  # noqa: D301  # \b is how click is told not to fill a paragraph
    question = read_question(ctx)
    record = question.decide().to_json()
    if as_json:
        print_json(record)
    else:
        from attn_backends.cli.record_view import record_view

        screen = console()
        for part in record_view(record, more=assumed_line(question), every=all_reasons):
            screen.print(part)
    if record["backend"] is None:
        ctx.exit(1)


def assumed_line(question: Question) -> list[tuple[str, str]]:
    """What was assumed, as a line of facts."""
    said = ", ".join(f"{name} {show(value)}" for name, value in question.assumed.items())
    return [("assumed", said)] if said else []
