"""The errors that a decision can mean, with everything the user needs to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.errors import NoBackendError, ReferenceForbiddenError, UnfitBackendError

if TYPE_CHECKING:
    from attn_backends.reason import Reason
    from attn_backends.selector.decision import Decision

REFERENCE_FORBIDDEN = "forbid_reference"


def raise_if_forced_unfit(decision: Decision) -> None:
    """Raise UnfitBackendError if a backend was chosen by name and cannot serve."""
    forced = decision.forced
    if forced is None or decision.backend is not None:
        return
    from attn_backends.selector.log.line import changes_phrase

    reasons = decision.candidate(forced.name).reasons
    said = "backend= or a pin" if forced.source == "explicit" else "a scope"
    lines = [f"backend {forced.name!r}, chosen by {said}, cannot serve this call:"]
    lines += [f"  {_coded(reason)}" for reason in reasons]
    fitting = [c.name for c in decision.candidates if c.status == "outranked"]
    lines.append("backends that would fit: " + (", ".join(fitting) if fitting else "none"))
    lines += [
        f"smallest change for {near.backend}: {changes_phrase(near.to_json())}"
        for near in decision.nearest
        if near.backend == forced.name
    ]
    raise UnfitBackendError("\n".join(lines), decision=decision)


def raise_if_reference_forbidden(decision: Decision) -> None:
    """Raise ReferenceForbiddenError if only reference-tier backends fit and the policy forbids them."""
    if decision.backend is None and any(_forbidden(candidate.reasons) for candidate in decision.candidates):
        raise ReferenceForbiddenError(
            "only a reference-tier backend fits, and the policy forbids it (forbid_reference)\n" + decision.explain(),
            decision=decision,
        )


def raise_unless_chosen(decision: Decision) -> None:
    """Raise the error of the cause if nothing was chosen."""
    raise_if_forced_unfit(decision)
    raise_if_reference_forbidden(decision)
    if decision.backend is None:
        raise NoBackendError("no backend can serve this call\n" + decision.explain(), decision=decision)


def _coded(reason: Reason) -> str:
    text = str(reason)
    return text if text.startswith(reason.code) else f"{reason.code}: {text}"


def _forbidden(reasons: tuple[object, ...]) -> bool:
    return len(reasons) == 1 and getattr(reasons[0], "source", "") == f"policy {REFERENCE_FORBIDDEN}"
