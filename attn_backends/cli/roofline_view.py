"""The roofline on the screen: what bounds a call, backends beside it; and the cost model's own error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attn_backends.cli.roofed import RoofedCall, Standing
from attn_backends.cli.screen import BAD, CODE, GOOD, HEAD, NAME, QUIET, WARN, facts, table, text
from attn_backends.reason import show
from attn_backends.selector.log.phrase import device_phrase, printable, request_phrase

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from attn_backends.bench.model_error import ModelError
    from attn_backends.bench.shares import Told
    from attn_backends.selector.cost.floor import Floor

UNKNOWN = "no matrix rate or memory bandwidth is known of this device: no floor, no predictions"
WORDS = {"matrix": "matrix products", "exp": "exponentials", "memory": "bytes moved", "launch": "one launch a pass"}
FREE = ("alignment", "kv_layout", "num_pages", "layout")  # fields that an overview leaves out
WIDE = 120  # columns from which requests and cells have a column of their own
STATUS = {"selected": GOOD, "outranked": "", "rejected": QUIET}


def roofline_view(calls: Sequence[RoofedCall], assumed: Mapping[str, Any], width: int) -> Iterator[RenderableType]:
    """One call in full, several as a table."""
    if len(calls) == 1:
        yield from _single(calls[0], assumed)
    elif calls:
        yield text(("device  ", HEAD), device_phrase(calls[0].decision.device.to_json()))
        yield ""
        yield _overview(calls, wide=width >= WIDE)
        if width < WIDE:
            yield ""
            yield facts([(printable(call.name), text((_short(call), QUIET))) for call in calls])
    else:
        yield text(("no call in this phase", QUIET))


def _single(call: RoofedCall, assumed: Mapping[str, Any]) -> Iterator[RenderableType]:
    device = call.decision.device
    lines: list[tuple[str, str | Text]] = [("call", printable(call.name))] if call.name else []
    lines += [("request", request_phrase(call.request.to_json())), ("device", device_phrase(device.to_json()))]
    if assumed:
        lines.append(("assumed", ", ".join(f"{name} {show(value)}" for name, value in assumed.items())))
    yield facts(lines)
    yield ""
    if call.floor is None:
        yield text((UNKNOWN, WARN))
    else:
        yield _resources(call.floor)
        yield text("floor  ", (f"{_ms(call.floor.seconds)} ms", NAME), f", bound by {WORDS[call.floor.bound]}")
    yield ""
    yield from _backends(call)


def _resources(floor: Floor) -> Table:
    made = table("resource", "amount", "ms at the peak")
    made.columns[1].justify = made.columns[2].justify = "right"
    amounts = {
        "matrix": f"{_scaled(floor.flops)}FLOP", "exp": f"{_scaled(floor.exponentials)}exp",
        "memory": f"{_scaled(floor.bytes)}B", "launch": "",
    }  # fmt: skip
    for name, amount in amounts.items():
        style = NAME if name == floor.bound else ""
        made.add_row(text((WORDS[name], style)), amount, text((_ms(getattr(floor, name)), style)))
    return made


def _backends(call: RoofedCall) -> Iterator[RenderableType]:
    """Those of which a time is known as a table, the others by what keeps them."""
    timed = [one for one in call.standings if one.prediction is not None or one.candidate.measured_ms is not None]
    if timed:
        yield _timed(call, timed)
    if _is_overtaken(timed):
        yield text(("chosen for a range of sizes, not for these alone; `explain` has its times there", QUIET))
    others: dict[str, list[str]] = {}
    for one in call.standings:
        if one not in timed:
            others.setdefault(_why(one), []).append(one.candidate.name)
    if others:
        if timed:
            yield ""
        made = table("why not", "backends")
        for why, names in others.items():
            made.add_row(text((why, CODE)), text((", ".join(names), QUIET)))
        yield made


def _timed(call: RoofedCall, standings: Sequence[Standing]) -> Table:
    measured = any(one.candidate.measured_ms is not None for one in standings)
    seen_head = ["measured\nms"] if measured else []
    made = table("backend", "predicted\nms", *seen_head, "of\nfloor", "bound", _unit(call), "")
    for column in made.columns[1:-1]:
        column.justify = "right"
    for one in standings:
        chosen = one.candidate.status == "selected"
        name = text((one.candidate.name, STATUS.get(one.candidate.status, "")))
        predicted = "" if one.prediction is None else _ms(one.prediction.seconds)
        share = "" if one.fraction is None else f"{one.fraction:.0%}"
        bound = "" if one.prediction is None else one.prediction.bound
        seen = (
            [] if not measured else ["" if one.candidate.measured_ms is None else _ms(one.candidate.measured_ms / 1e3)]
        )
        made.add_row(name, predicted, *seen, share, bound, _rate(call, one), text(("chosen" if chosen else "", GOOD)))
    return made


def _is_overtaken(standings: Sequence[Standing]) -> bool:
    """Whether another one is predicted to be faster, at these very sizes, than the one that is chosen."""
    predicted = {one.candidate.name: one.prediction.seconds for one in standings if one.prediction is not None}
    chosen = [one.candidate.name for one in standings if one.candidate.status == "selected"]
    return any(name in predicted and min(predicted.values()) < predicted[name] for name in chosen)


def _unit(call: RoofedCall) -> str:
    """Of what bounds the call."""
    return "GB/s" if call.floor is not None and call.floor.bound == "memory" else "TFLOP/s"


def _rate(call: RoofedCall, one: Standing) -> str:
    """What the prediction means in the unit of what bounds the call."""
    if one.prediction is None or call.floor is None:
        return ""
    if call.floor.bound == "memory":
        return f"{call.floor.bytes / one.prediction.seconds / 1e9:.0f}"
    return f"{call.floor.flops / one.prediction.seconds / 1e12:.3g}"


def _why(one: Standing) -> str:
    """What keeps a backend from having a time."""
    codes = list(dict.fromkeys(reason.code for reason in one.candidate.reasons if reason.code != "outranked"))
    more = f" and {len(codes) - 3} more" if len(codes) > 3 else ""
    return ", ".join(codes[:3]) + more if codes else "declares no efficiency"


def _overview(calls: Sequence[RoofedCall], *, wide: bool) -> Table:
    heads = ["call", *(["request"] if wide else []), "floor\nms", "bound", "backend", "predicted\nms", "of\nfloor"]
    made = table(*heads)
    for column in (made.columns[-5], *made.columns[-2:]):
        column.justify = "right"
    made.columns[-3].no_wrap = True
    for call in calls:
        chosen = call.chosen
        prediction = None if chosen is None else chosen.prediction
        made.add_row(
            text((printable(call.name), NAME)), *([text((_short(call), QUIET))] if wide else []),
            "?" if call.floor is None else _ms(call.floor.seconds), "" if call.floor is None else call.floor.bound,
            text(("none", BAD) if chosen is None else (chosen.candidate.name, GOOD)),
            "" if prediction is None else _ms(prediction.seconds),
            "" if chosen is None or chosen.fraction is None else f"{chosen.fraction:.0%}",
        )  # fmt: skip
    return made


def _short(call: RoofedCall) -> str:
    """The request without what costs nothing."""
    request = {name: value for name, value in call.request.to_json().items() if name not in FREE}
    return request_phrase(request)


def error_view(error: ModelError, width: int) -> Iterator[RenderableType]:
    """How far the cost model is off, and what would be nearer."""
    if error.backends:
        yield from _errors(error, wide=width >= WIDE)
    else:
        yield text(("nothing to judge: no time of a backend that declares its efficiency", WARN))
    if error.unknown:
        yield text((f"not judged, for they declare no efficiency here: {', '.join(error.unknown)}", QUIET))
    if error.impossible:
        many = f", nor {len(error.impossible) - 1} more" if len(error.impossible) > 1 else ""
        yield text(
            (f"not judged, for it is faster than the device's stated peaks allow: {error.impossible[0]}{many}", WARN)
        )


def _errors(error: ModelError, *, wide: bool) -> Iterator[RenderableType]:
    made = table("backend", "cells", "typical", "predicted/\nmeasured", "worst", *(["at"] if wide else []))
    made.columns[0].no_wrap = True
    for place in (1, 2, 3, 4):
        made.columns[place].justify = "right"
    for one in error.backends:
        made.add_row(
            one.backend, str(one.cells), f"x{one.typical:.2f}", f"{one.bias:.2f}", f"{one.worst:.2f}",
            *([text((one.worst_cell, QUIET))] if wide else []),
        )  # fmt: skip
    yield made
    if not wide:
        yield ""
        yield text(("worst at", HEAD))
        yield facts([(f"  {one.backend}", text((one.worst_cell, QUIET))) for one in error.backends])
    yield ""
    yield text(("efficiency that would fit", HEAD))
    for one in error.backends:
        yield text((f"  {one.backend}", NAME))
        yield from (text(f"    {line}") for line in _shares(one.told))
    if error.picks:
        yield ""
        yield text(
            ("first choice right  ", HEAD), f"{error.right} of {error.picks} cells ({error.right / error.picks:.0%}); ",
            f"its time over the best time {error.regret:.3f} (geometric mean)",
        )  # fmt: skip


def _shares(told: Told) -> Iterator[str]:
    """As a manifest has them; and in words, what these times do not say."""
    if told.fits:
        yield "{ " + ", ".join(f"{name} = {share:g}" for name, share in told.fits.items()) + " }"
    if told.least:
        yield "at least: " + ", ".join(f"{name} {share:g}" for name, share in told.least.items())
    if told.beyond:
        yield f"no share fits, it would be above 100 %: {', '.join(told.beyond)}"
    if told.mingled:
        yield f"too few cells to tell apart: {', '.join(told.mingled)}"
    if told.untold:
        yield f"no cell here depends on: {', '.join(told.untold)}"


def _ms(seconds: float) -> str:
    """Four digits, and whole milliseconds above those: `0.5557`, `15,930`."""
    return f"{seconds * 1e3:,.0f}" if seconds >= 10 else f"{seconds * 1e3:.4g}"


def _scaled(amount: float) -> str:
    """`4.4 T`, with a unit's prefix."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if amount >= size:
            return f"{amount / size:.3g} {prefix}"
    return f"{amount:.3g} "
