"""`attn-backends demo`, also `python -m attn_backends.cli.demo`: the whole way once, in seconds, on any machine.

Plans a real model for two GPUs that need not be here and for this machine; runs attention here through whatever is
chosen and holds it against the reference in float64; shows what the ledger counted and what the log says.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from attn_backends.cli.needs_torch import need_torch
from attn_backends.cli.options import json_option
from attn_backends.cli.plan_view import winner
from attn_backends.cli.planned import Plan, missed, plan_config
from attn_backends.cli.screen import BAD, GOOD, HEAD, NAME, QUIET, console, print_json, table, text
from attn_backends.selector.log.line import info_line
from attn_backends.selector.log.phrase import device_phrase

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from attn_backends.selector.decision import Decision

MODEL = "llama-3.1-8b"
GPUS = ("h200", "rtx_4090")
HERE = "here"  # what --device calls this machine
PHASES = ("prefill", "decode")
PLAN = f"attn-backends plan {MODEL} " + " ".join(f"--device {name}" for name in (*GPUS, HERE))
KNOB = "ATTN_BACKENDS_LOG"
ROUNDS = 3  # times each call is made
ROUNDINGS = 16  # roundings of the dtype that a result may be away from the reference
PAGE = 16
FEATURES = {"page_size": "a paged KV cache", "kv_layout": "a paged KV cache"}  # axes that are said in other words


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One call that was made here."""

    call: str
    backend: str
    source: str
    max_error: float
    allowed: float
    launches: int
    id: str

    @property
    def right(self) -> bool:
        """Whether the result is as near to the reference as its dtype can be expected to be."""
        return self.max_error <= self.allowed


@click.command("demo")
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Plan a model, run attention here, check it against the reference, and read the log of it."""
    plan = plan_config(MODEL, [*GPUS, None], phases=PHASES, sizes={})
    with tempfile.TemporaryDirectory() as folder, _logging_to(folder):
        ran, decisions = _run_calls()
        records = _logged(folder)
    if as_json:
        calls = [{**asdict(one), "right": one.right} for one in ran]
        print_json({"plan": plan.to_json(), "calls": calls, "log": records})
    else:
        _draw(plan, ran, records, decisions[1])
    if not all(one.right for one in ran):
        ctx.exit(1)


@contextmanager
def _logging_to(folder: str) -> Iterator[None]:
    from attn_backends.selector.select import clear_cache

    before = os.environ.get(KNOB)
    os.environ[KNOB] = folder
    clear_cache()  # what was decided before would not be logged again
    try:
        yield
    finally:
        os.environ.pop(KNOB)
        if before is not None:
            os.environ[KNOB] = before


def _logged(folder: str) -> list[dict[str, Any]]:
    from attn_backends.selector.log.reader import read

    return list(read(folder))


def _run_calls() -> tuple[list[Ran], list[Decision]]:
    need_torch("the demo runs attention")
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    pairs = [_run(name, tensors, arguments) for name, tensors, arguments in _calls(device, dtype)]
    return [ran for ran, _ in pairs], [decision for _, decision in pairs]


def _run(name: str, tensors: tuple[torch.Tensor, ...], arguments: dict[str, Any]) -> tuple[Ran, Decision]:
    """Make one call a few times, and once through the reference in float64."""
    import torch

    import attn_backends as ab

    q, k, v = tensors
    out = [ab.attention(q, k, v, **arguments) for _ in range(ROUNDS)][-1]
    exact = ab.attention(q.double(), k.double(), v.double(), backend="eager", **arguments)
    assert isinstance(out, torch.Tensor)
    assert isinstance(exact, torch.Tensor)
    request = ab.Request.from_tensors(q, k, v, **arguments)
    decision = ab.select(request, device=ab.Device.of(q.device.type, q.device.index))
    ran = Ran(
        call=name,
        backend=decision.backend or "none",
        source=decision.source or "",
        max_error=float((out.double() - exact).abs().max()),
        allowed=ROUNDINGS * torch.finfo(out.dtype).eps * float(exact.abs().max()),
        launches=ab.launches()[decision.id].launches,
        id=decision.id,
    )
    return ran, decision


def _calls(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, tuple[torch.Tensor, ...], dict[str, Any]]]:
    """(name, (q, k, v), arguments): what layers of language models do, in small."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def fresh(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator).to(device=device, dtype=dtype)

    dense = fresh(1, 256, 8, 64), fresh(1, 256, 2, 64), fresh(1, 256, 2, 64)
    yield "prefill, causal, GQA 4", dense, {"causal": True}
    yield "the same with window 64, softcap 50", dense, {"causal": True, "window_left": 63, "softcap": 50.0}
    lengths = torch.tensor([200, 17, 96, 256], dtype=torch.int32, device=device)
    pages = 4 * 256 // PAGE
    table_of_pages = torch.randperm(pages, generator=generator).to(device=device, dtype=torch.int32).reshape(4, -1)
    cache = fresh(pages, PAGE, 2, 64), fresh(pages, PAGE, 2, 64)
    paged = {"block_table": table_of_pages, "seq_lens": lengths, "causal": True}
    yield "decode over a paged cache, batch 4", (fresh(4, 1, 8, 64), *cache), paged


def _draw(plan: Plan, ran: list[Ran], records: list[dict[str, Any]], shown: Decision) -> None:
    from attn_backends.cli.record_view import record_view

    screen = console()
    _heading(screen, "1", PLAN, "who serves each layer, on GPUs that need not be here")
    _draw_plan(screen, plan)
    for line in _why_reference(plan):
        screen.print(text((line, QUIET)))
    _heading(screen, "2", "attn_backends.attention(q, k, v, ...)", "run here, held against the reference in float64")
    _draw_calls(screen, ran)
    _heading(screen, "3", f"{KNOB}=folder", "one line per decision; read it with `attn-backends log show folder`")
    for record in records:
        if record["id"] in {one.id for one in ran}:
            screen.print(text((info_line(record), QUIET)), no_wrap=True, overflow="ellipsis")
    _heading(screen, "4", _question(shown), "why this backend, and why not the others")
    for part in record_view(shown.to_json(), more=[], every=False):
        screen.print(part)


def _heading(screen: Console, number: str, what: str, why: str) -> None:
    if number != "1":
        screen.print()
    screen.print(text((f"{number}. ", HEAD), (what, NAME)), soft_wrap=True)  # a command stays one line, to be copied
    screen.print(text((f"   {why}", QUIET)))
    screen.print()


def _draw_plan(screen: Console, plan: Plan) -> None:
    here = [device_phrase(one.device.to_json()) for one in plan.kinds[0].calls[0].decisions]
    made = table("layers", "phase", *here[:-1], f"here: {here[-1]}")
    for planned in plan.kinds:
        for call in planned.calls:
            made.add_row(
                f"{planned.kind.count} x {planned.kind.name}",
                call.call.phase,
                *(text(winner(one)) for one in call.decisions),
            )
    screen.print(made)


def _why_reference(plan: Plan) -> Iterator[str]:
    """One line per phase that some device serves by the reference: what no other backend takes."""
    for planned in plan.kinds:
        for call in planned.calls:
            lacks = [_lacking(decision) for decision in call.decisions if decision.tier == "reference"]
            common = [axis for axis in (lacks[0] if lacks else ()) if all(axis in other for other in lacks)]
            if common:
                words = " or ".join(dict.fromkeys(FEATURES.get(axis, axis) for axis in common))
                yield f"{call.call.phase} falls to the reference: no other registered backend takes {words} yet"


def _lacking(decision: Decision) -> list[str]:
    """The axes that stand between the call and every other backend of this device."""
    asked = [[reason.axis for reason in candidate.reasons] for candidate in missed(decision)]
    return [axis for axis in (asked[0] if asked else ()) if all(axis in other for other in asked)]


def _question(decision: Decision) -> str:
    """The command that asks for this decision again, on two lines that a shell takes for one."""
    asked = decision.request
    sizes = f"--heads {asked.num_q_heads}/{asked.num_kv_heads} --head-dim {asked.head_dim_qk} --seq {asked.seq_k}"
    features = f"--causal --window-left {asked.window_left} --softcap {asked.softcap}"
    return f"attn-backends explain --dtype {asked.dtype} {sizes} \\\n     {features}"


def _draw_calls(screen: Console, ran: list[Ran]) -> None:
    made = table("call", "backend", "error", "allowed", "launches", "verdict")
    for one in ran:
        verdict = ("right", GOOD) if one.right else ("WRONG", BAD)
        made.add_row(
            one.call,
            text((one.backend, NAME)),
            f"{one.max_error:.1e}",
            f"{one.allowed:.1e}",
            str(one.launches),
            text(verdict),
        )
    screen.print(made)


if __name__ == "__main__":
    import sys

    from attn_backends.cli.main import PROGRAM, cli

    cli(["demo", *sys.argv[1:]], prog_name=PROGRAM)
