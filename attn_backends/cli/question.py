"""The question that `explain` and `why-not` ask: request, device, backend and policy, read from the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attn_backends.cli.assumptions import assume
from attn_backends.cli.failure import Failure
from attn_backends.cli.options import BACKEND, DEVICE, policy_options
from attn_backends.cli.request_flags import field_options, fields_given
from attn_backends.cli.shorthands import shorthand_fields, shorthand_options
from attn_backends.request import Request

if TYPE_CHECKING:
    from attn_backends.selector.decision import Decision
    from attn_backends.selector.policy import Policy

MAX_BYTES = 16 * 2**20
HERE = ("here", "current", "this")


class QuestionCommand(click.Command):
    """A command whose help shows the request's flags apart from its own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section per kind of option."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            shown = None if isinstance(param, click.Argument) else param.get_help_record(ctx)
            if shown is not None:
                sections.setdefault(getattr(param, "section", "Options"), []).append(shown)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What was asked; `assumed` are the fields that the command line left unsaid."""

    request: Request
    assumed: dict[str, Any] = field(default_factory=dict)
    device: str | None = None
    backend: str | None = None
    policy: Policy | None = None

    def decide(self, request: Request | None = None, **changes: Any) -> Decision:
        """The decision, also where nothing fits."""
        from attn_backends.selector.explain import decide

        arguments = {"device": self.device, "backend": self.backend, "policy": self.policy, **changes}
        return decide(request or self.request, **arguments)


def question_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options of a question that are no fields of a request."""
    for option in reversed(_SELECTION):
        function = option(function)
    return function


def question_params() -> list[click.Parameter]:
    """The request's own flags, shorthands first."""
    return [*shorthand_options(), *field_options()]


def read_question(ctx: click.Context) -> Question:
    """Put the question together. Raises RequestError, PolicyError, UnknownBackendError."""
    given = ctx.params
    named = {**shorthand_fields(given), **fields_given(ctx)}
    stated = _from_file(given["request_file"]) if given.get("request_file") else None
    assumed = assume(named) if stated is None else {}
    request = Request(**assumed, **named) if stated is None else stated.replace(**named)
    return Question(
        request=request, assumed=assumed, device=device_name(given.get("device")), backend=given.get("backend"),
        policy=policy_of(given),
    )  # fmt: skip


def device_name(given: str | None) -> str | None:
    """The name to pretend; None for this machine."""
    return None if given is None or given.lower() in HERE else given


def policy_of(given: dict[str, Any]) -> Policy | None:
    """The policy file with the options laid over it; None where neither is given."""
    from attn_backends.selector.policy import Policy

    changes = {name: given[name] for name in ("prefer", "block", "only", "numerics") if given.get(name)}
    if not changes and not given.get("policy"):
        return None
    _check_names(name for field, names in changes.items() if field != "numerics" for name in names)
    base = Policy.from_toml(given["policy"]) if given.get("policy") else Policy()
    return base.overlaid(changes)


def _check_names(names: Any) -> None:
    from attn_backends.registry.registry import default_registry

    snapshot = default_registry().snapshot()
    for name in names:
        if not any(item.name == name for item in snapshot.broken):
            snapshot.get(name)


def _from_file(name: str) -> Request:
    """A request's JSON, or the request of a decision's record."""
    where = "stdin" if name == "-" else Path(name).name
    raw = sys.stdin.read(MAX_BYTES + 1) if name == "-" else Path(name).read_text(encoding="utf-8", errors="replace")
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Failure(
            f"{where}: not JSON: {error}", "a request is a JSON object such as `explain --json` prints"
        ) from None
    if isinstance(data, dict) and isinstance(data.get("request"), dict):
        data = data["request"]
    if not isinstance(data, dict):
        raise Failure(f"{where}: a request is a JSON object; got {type(data).__name__}")
    return Request.from_json(data)


_SELECTION = (
    click.argument("request_file", metavar="[REQUEST.json|-]", required=False),
    click.option(
        "--device", type=DEVICE, help="Pretend this device: h200, rtx_4090, sm_90, gfx942, cpu.  [this machine]"
    ),
    click.option("--backend", type=BACKEND, help="As attention(backend=...): this one or none."),
    policy_options,
)
