"""`attn-backends why-not NAME`: why one backend does not serve a request, and whether the smallest change would help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from attn_backends.cli.explain import assumed_line
from attn_backends.cli.lifted import behind_the_filters
from attn_backends.cli.options import BACKEND, json_option
from attn_backends.cli.question import Question, QuestionCommand, question_options, question_params, read_question
from attn_backends.cli.record_view import reason_text
from attn_backends.cli.relaxed import relax
from attn_backends.cli.screen import BAD, CODE, GOOD, HEAD, NAME, QUIET, WARN, console, facts, print_json, table, text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from attn_backends.selector.decision import Candidate, Change, Decision

ROUNDS = 3  # a change of device may ask for an architecture, and that for more


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """The smallest change, and the decision after it; `impossible` are the steps that no request can take."""

    changes: tuple[Change, ...] = ()
    after: Decision | None = None
    impossible: tuple[Change, ...] = ()


@click.command("why-not", cls=QuestionCommand, params=question_params())
@click.argument("name", type=BACKEND)
@question_options
@json_option
@click.pass_context
def command(ctx: click.Context, /, name: str, as_json: bool, **_given: object) -> None:
    """Why one backend does not serve a request, and whether the smallest change would make it.

    The request comes from flags or a JSON file, as for `explain`. Exits 0 if the backend fits, 1 if it does not.

    \b
    attn-backends why-not sdpa_flash --device h200 --causal --softcap 50
    """  # noqa: D301  # \b is how click is told not to fill a paragraph
    question = read_question(ctx)
    decision = question.decide()
    candidate = decision.candidate(name)
    way = _way_out(question, decision, name)
    behind = behind_the_filters(decision, candidate)
    if as_json:
        print_json(_record(decision, candidate, behind, way))
    else:
        screen = console()
        for part in _parts(question, decision, candidate, behind, way):
            screen.print(part)
    if candidate.status == "rejected":
        ctx.exit(1)


def _way_out(question: Question, decision: Decision, name: str) -> WayOut:
    """Change what the nearest box asks for and decide again, until the backend fits or nothing more can be changed."""
    from attn_backends.selector.explain import decide

    backend = question.backend if question.backend != name else None
    taken: tuple[Change, ...] = ()
    current = decision
    for _ in range(ROUNDS):
        steps = next((near.changes for near in current.nearest if near.backend == name), ())
        if not steps:
            break
        taken += steps
        relaxed = relax(current.request, current.device, steps)
        if relaxed.impossible:
            return WayOut(changes=taken, impossible=relaxed.impossible)
        current = decide(
            relaxed.request, device=relaxed.device, backend=backend, policy=question.policy,
            environment=decision.environment,
        )  # fmt: skip
    return WayOut(changes=taken, after=current) if taken else WayOut()


def _record(decision: Decision, candidate: Candidate, behind: Candidate | None, way: WayOut) -> dict[str, Any]:
    changes = [one.to_json() for one in way.changes]
    return {
        "id": decision.id,
        "request": decision.request.to_json(),
        "device": decision.device.to_json(),
        "backend": decision.backend,
        "candidate": candidate.to_json(),
        "behind": behind and behind.to_json()["reasons"],
        "changes": changes,
        "impossible": [one.axis for one in way.impossible],
        "after": way.after and _after_record(way.after, candidate.name),
    }


def _after_record(after: Decision, name: str) -> dict[str, Any]:
    own = after.candidate(name)
    return {
        "request": after.request.to_json(), "device": after.device.to_json(), "backend": after.backend,
        "would_fit": own.status != "rejected", "would_win": own.status == "selected", "candidate": own.to_json(),
    }  # fmt: skip


def _parts(
    question: Question, decision: Decision, candidate: Candidate, behind: Candidate | None, way: WayOut
) -> Iterator[RenderableType]:
    yield _verdict(decision, candidate)
    yield ""
    yield facts([*_inputs(decision), *assumed_line(question), *_hints(candidate)])
    if candidate.status == "rejected":
        yield ""
        yield _reasons(candidate)
    if behind is not None:
        yield ""
        yield text(("and without that, all the same", HEAD))
        yield facts(list(_hints(behind)))
        yield _reasons(behind)
    if way.changes:
        yield ""
        yield facts(list(_outcome_lines(candidate.name, way)))


def _verdict(decision: Decision, candidate: Candidate) -> Text:
    name = (candidate.name, NAME)
    if candidate.status == "selected":
        return text(name, (" serves this request", GOOD), f", by {decision.source}")
    if candidate.status == "outranked":
        why = "; ".join(reason.message for reason in candidate.reasons)
        return text(name, (" could serve this request", WARN), f": it {why}")
    winner = f"; {decision.backend} does" if decision.backend else "; nor does any other"
    return text(name, (" cannot serve this request", BAD), f" ({candidate.stage}){winner}")


def _inputs(decision: Decision) -> list[tuple[str, str | Text]]:
    from attn_backends.selector.log.phrase import device_phrase, request_phrase

    pretended = " (pretended)" if decision.device.pretended else ""
    return [
        ("request", request_phrase(decision.request.to_json())),
        ("device", device_phrase(decision.device.to_json()) + pretended),
    ]


def _hints(candidate: Candidate) -> Iterator[tuple[str, str | Text]]:
    if candidate.status == "outranked":
        yield "to use it", f'backend="{candidate.name}" in the call, or prefer it in a policy'
    if candidate.stage == "capability":
        yield "nearest box", ", ".join(dict.fromkeys(reason.source for reason in candidate.reasons))
        if hints := dict.fromkeys(reason.hint for reason in candidate.reasons if reason.hint):
            yield "hint", "; ".join(hints)


def _reasons(candidate: Candidate) -> Table:
    """Axis by axis where the request has a value; the message where it is about something else."""
    if candidate.stage != "capability":
        made = table("why")
        for reason in candidate.reasons:
            made.add_row(reason_text(reason.to_json(), every=True))
        return made
    made = table("axis", "asked for", "declared")
    for reason in candidate.reasons:
        axis, _, rest = reason.message.rpartition(": got ")
        made.add_row(text((axis, CODE)), rest.partition(", want ")[0], reason.want)
    return made


def _outcome_lines(name: str, way: WayOut) -> Iterator[tuple[str, str | Text]]:
    from attn_backends.selector.log.line import changes_phrase

    yield "smallest change", changes_phrase({"changes": [one.to_json() for one in way.changes]})
    yield "after it", _outcome(name, way)


def _outcome(name: str, way: WayOut) -> Text:
    if way.after is None:
        axes = ", ".join(one.axis for one in way.impossible)
        return text(
            (f"no request has that {axes}", QUIET), f": {name} declares nothing that could be asked for instead"
        )
    own = way.after.candidate(name)
    said = "; ".join(str(reason) for reason in own.reasons)
    if own.status == "selected":
        return text((f"{name} would serve it", GOOD), f", by {way.after.source}")
    if own.status == "outranked":
        return text((f"{name} would fit", WARN), ", but ", (str(way.after.backend), HEAD), f" would serve it: {said}")
    return text((f"{name} would still be refused", BAD), f": {said}")
