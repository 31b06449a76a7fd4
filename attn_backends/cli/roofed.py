"""`RoofedCall`: one call on one device: its floor, and where every backend stands beside it. Data; drawing is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from attn_backends.cli.failure import Failure
from attn_backends.cli.question import Question, device_name, policy_of
from attn_backends.planning import layer_kinds, load_config, requests
from attn_backends.registry.registry import default_registry
from attn_backends.selector.cost.floor import Floor, floor_of
from attn_backends.selector.cost.load import subject_of
from attn_backends.selector.cost.predict import Prediction, predict
from attn_backends.selector.explain import decide

if TYPE_CHECKING:
    from attn_backends.request import Request
    from attn_backends.selector.decision import Candidate, Decision

OF_A_CONFIG = ("phase", "batch", "page_size", "dtype", "k_format", "v_format")  # fields that go with --config


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One backend. `fraction` is floor / predicted; None where nothing is predicted, or it cannot serve the call."""

    candidate: Candidate
    prediction: Prediction | None
    fraction: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain values; milliseconds."""
        made = self.prediction
        return {
            "backend": self.candidate.name, "status": self.candidate.status,
            "codes": [reason.code for reason in self.candidate.reasons if reason.code != "outranked"],
            "predicted_ms": made and made.seconds * 1e3, "bound": made and made.bound, "fraction": self.fraction,
            "measured_ms": self.candidate.measured_ms,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofedCall:
    """`name` is the kind of layer and the phase of a model's call, empty for a single request."""

    name: str
    request: Request
    decision: Decision
    floor: Floor | None
    standings: tuple[Standing, ...]

    @property
    def chosen(self) -> Standing | None:
        """The backend that selection takes."""
        return next((one for one in self.standings if one.candidate.status == "selected"), None)

    def to_json(self) -> dict[str, Any]:
        """Plain values; the floor's times in milliseconds."""
        floor = None
        if self.floor is not None:
            times = {f"{name}_ms": getattr(self.floor, name) * 1e3 for name in ("matrix", "exp", "memory", "launch")}
            amounts = {name: asdict(self.floor)[name] for name in ("flops", "exponentials", "bytes")}
            floor = {"ms": self.floor.seconds * 1e3, "bound": self.floor.bound, **times, **amounts}
        return {
            "name": self.name, "request": self.request.to_json(), "device": self.decision.device.to_json(),
            "backend": self.decision.backend, "source": self.decision.source, "floor": floor,
            "backends": [one.to_json() for one in self.standings],
        }  # fmt: skip


def roofed_question(question: Question) -> RoofedCall:
    """One request as the command line asks for it."""
    return _roofed("", question.request, question.decide())


def roofed_config(
    config: str, given: Mapping[str, Any], fields: Mapping[str, Any], context: int | None
) -> list[RoofedCall]:
    """Every call of a model's config. Raises ConfigError, RequestError; Failure for flags that go with no config."""
    strange = [name for name in fields if name not in OF_A_CONFIG]
    if strange or fields.get("k_format") != fields.get("v_format"):
        names = ", ".join(strange) or "k_format and v_format apart"
        raise Failure(f"{names}: says nothing beside --config", "the model says it; --phase, --batch, --page-size, --dtype, --kv-format and --context may be given")  # fmt: skip
    if given.get("request_file"):
        raise Failure("--config and a request file are two questions", "give one of them")
    sizes = {name: fields[name] for name in ("batch", "page_size", "dtype") if name in fields}
    sizes |= {"context": context, "kv_format": fields.get("k_format", "dense")}
    device, policy = device_name(given.get("device")), policy_of(dict(given))
    calls = []
    for kind in layer_kinds(load_config(config)):
        for call in requests(kind, **sizes):
            if fields.get("phase") in (None, call.phase):
                decision = decide(call.request, device=device, backend=given.get("backend"), policy=policy)
                calls.append(_roofed(f"{kind.name} {call.phase}", call.request, decision))
    return calls


def _roofed(name: str, request: Request, decision: Decision) -> RoofedCall:
    device = decision.device
    floor, subject = floor_of(request, device), subject_of(request, device)
    manifests = {one.name: one for one in (decision.origin or default_registry()).snapshot().manifests}
    standings = []
    for candidate in decision.candidates:
        made = None
        if subject is not None and candidate.status != "rejected" and candidate.name in manifests:
            made = predict(manifests[candidate.name], subject)
        fraction = floor.seconds / made.seconds if floor is not None and made is not None else None
        standings.append(Standing(candidate=candidate, prediction=made, fraction=fraction))
    return RoofedCall(name=name, request=request, decision=decision, floor=floor, standings=tuple(standings))
