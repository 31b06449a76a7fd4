"""Decision cases: the case's backends alone in a registry, one question, and everything the answer must say. No torch."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import attn_backends
from attn_backends import Decision, Device, Environment, Policy, Registry, Request
from attn_backends import errors as e
from attn_backends.capability import TABLE
from attn_backends.conformance.field_cases.outcome import Difference
from attn_backends.conformance.field_cases.reading import Case, laid_over
from attn_backends.reason import frozen
from attn_backends.registry.certificates import architecture, certificate_of
from attn_backends.registry.manifest import Manifest, read_manifest

_ERRORS: dict[str, type[e.AttnBackendsError]] = {
    "unfit": e.UnfitBackendError,
    "no_backend": e.NoBackendError,
    "request": e.RequestError,
    "duplicate": e.DuplicateBackendError,
    "unknown_backend": e.UnknownBackendError,
    "reference_forbidden": e.ReferenceForbiddenError,
    "manifest": e.ManifestError,
    "policy": e.PolicyError,
}
_OURS = ("name", "capability", "third_party", "certified")  # keys of a backend that are not the manifest's
_AXIS_OF = {part: row.axis for row in TABLE for part in row.parts}


@dataclass(frozen=True, slots=True)
class CaseTimes:
    """Measured milliseconds as a case gives them."""

    by_backend: tuple[tuple[str, float], ...] = ()

    @property
    def token(self) -> Hashable:
        """The times themselves."""
        return self.by_backend

    def times(self, request: Request, device: Device) -> Mapping[str, float]:
        """The same for every request."""
        return dict(self.by_backend)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a decision is made among: the case's backends, its device, and what is installed."""

    registry: Registry
    device: Device
    environment: Environment


def scene_of(case: Case) -> Scene:
    """Register the case's backends and nothing else."""
    registry = Registry(builtin=False, autoload=False)
    manifests = [
        (registry.register(_manifest(raw, case.defaults["box"])), raw.get("certified", False))
        for raw in case.get("backends", ())
    ]
    packages = {requirement.name for manifest, _ in manifests for requirement in manifest.requires}
    device = _device(case)
    arch = architecture(device.kind, device.arch)
    certificates = [certificate_of(manifest, arch) for manifest, certified in manifests if certified]
    return Scene(registry=registry, device=device, environment=Environment.current(packages, certificates))


def _manifest(raw: Mapping[str, Any], default_box: Mapping[str, Any]) -> Manifest:
    origin = "third_party" if raw.get("third_party") else "in_process"
    manifest = {
        "schema": 1, "version": "1.0", "api": ">=1.0,<2", "kernel": "no_such_module:run", "name": raw["name"],
        **{key: value for key, value in raw.items() if key not in _OURS},
        "capability": [_box(box, default_box) for box in raw["capability"]],
    }  # fmt: skip
    return read_manifest(manifest, label=f"{raw['name']}/backend.toml", origin=origin)


def _box(box: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """The box over the default one, without the axes that `without` names."""
    merged = {**default, **box}
    absent = merged.pop("without", ())
    return {axis: value for axis, value in merged.items() if axis not in absent}


def _device(case: Case) -> Device:
    facts = laid_over(case.defaults["device"], case.get("device", {}))
    kind = facts.pop("kind", "cuda")
    if kind not in ("cuda", "rocm") and "arch" not in case.get("device", {}):
        facts.pop("arch", None)
    arch = facts.pop("arch", None)
    named = None if arch is None else (int(arch[0]), int(arch[1]))
    name = facts.pop("name", f"sm_{named[0]}{named[1]}" if named else kind)
    return Device(kind=kind, name=name, arch=named, pretended=True, **facts)


def request_of(case: Case, changes: Mapping[str, Any]) -> Request:
    """`changes` over the file's default request. Raises RequestError."""
    return Request(**{name: frozen(value) for name, value in laid_over(case.defaults["request"], changes).items()})


def differences_of_decision(case: Case) -> list[Difference]:
    """Ask once, and compare the answer or the error."""
    try:
        decision = ask(case)
    except e.AttnBackendsError as error:
        return _of_error(case, error)
    expected = case.get("expect_error")
    if expected is not None and not (expected == "no_backend" and decision.backend is None):
        return [Difference(what="error", expected=expected, got=f"the decision for {decision.backend!r}")]
    return [*_of_choice(case, decision), *_of_texts(case, decision.explain()), *_of_record(case, decision)]


def ask(case: Case) -> Decision:
    """The case's one question."""
    scene = scene_of(case)
    asked = dict(case.get("select", {}))
    backend, scopes = asked.pop("backend", None), asked.pop("use", ())
    with ExitStack() as stack:
        for name, *conditions in scopes:
            stack.enter_context(attn_backends.use(name, **(conditions[0] if conditions else {})))
        return attn_backends.select(
            request_of(case, case.get("request", {})), backend=backend, policy=Policy.from_dict(asked),
            device=scene.device, environment=scene.environment, registry=scene.registry,
            measurements=CaseTimes(tuple(sorted(case.get("measurements", {}).items()))),
        )  # fmt: skip


def _of_error(case: Case, error: e.AttnBackendsError) -> list[Difference]:
    expected = case.get("expect_error")
    cause = _ERRORS.get(expected or "")
    nobody = case.get("expect_backend") == "" and isinstance(error, e.NoBackendError)
    found: list[Difference] = []
    if not nobody and (cause is None or not isinstance(error, cause)):
        wanted = expected or f"the decision for {case.get('expect_backend')!r}"
        found.append(Difference(what="error", expected=wanted, got=f"{type(error).__name__}: {error}"))
    found += _of_texts(case, str(error))
    return found + (_of_record(case, error.decision) if error.decision is not None else [])


def _of_choice(case: Case, decision: Decision) -> list[Difference]:
    found = []
    if "expect_backend" in case.table and (decision.backend or "") != case.get("expect_backend"):
        codes = {candidate.name: sorted(_codes(decision, candidate.name)) for candidate in decision.candidates}
        found.append(
            Difference(what="backend", expected=case.get("expect_backend"), got=f"{decision.backend!r} (codes {codes})")
        )
    if "expect_source" in case.table and decision.source != case.get("expect_source"):
        found.append(Difference(what="source", expected=case.get("expect_source"), got=decision.source))
    return found


def _of_texts(case: Case, text: str) -> list[Difference]:
    return [
        Difference(what="text", expected=f"{piece!r} in it", got=text)
        for piece in case.get("expect_text", ())
        if piece not in text
    ]


def _of_record(case: Case, decision: Decision) -> list[Difference]:
    """Reason codes and relaxations, backend by backend."""
    found = []
    subset = case.get("codes_match") == "subset"
    for name, codes in case.get("expect_codes", {}).items():
        got = _codes(decision, name)
        if not (set(codes) <= got if subset else set(codes) == got):
            found.append(Difference(what=f"codes of {name}", expected=sorted(codes), got=sorted(got)))
    for name, axes in case.get("expect_nearest", {}).items():
        near = [
            change.axis
            for relaxation in decision.nearest
            if relaxation.backend == name
            for change in relaxation.changes
        ]
        if _axes(near) != _axes(axes):
            found.append(Difference(what=f"nearest of {name}", expected=sorted(axes), got=sorted(near)))
    return found


def _codes(decision: Decision, name: str) -> set[str]:
    return {reason.code for reason in decision.candidate(name).reasons} - {"outranked"}


def _axes(names: Iterable[str]) -> set[str]:
    """Names of axes, where a part such as `seq_k` stands for its axis."""
    return {_AXIS_OF.get(name, name) for name in names}
