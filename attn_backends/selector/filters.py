"""The filters around the axes, in their fixed order: why a backend is out whatever the request's shape.

blocked / not_in_only, api_version, requirement, load_error, not_certified, numerics; then quarantine and gaps, which
alone among them depend on the request. A forbidden reference is blocked last, behind axes and `check`. `list` asks them too,
so they know neither requests, devices nor decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from attn_backends.reason import Reason
from attn_backends.registry.certificates import certified_architectures
from attn_backends.registry.environment import Environment, fits
from attn_backends.registry.registry import Snapshot
from attn_backends.selector.policy import Policy
from attn_backends.selector.refusal import REFERENCE_FORBIDDEN

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.registry.manifest import Manifest
    from attn_backends.request import Request
    from attn_backends.selector.quarantine import Entry

API_VERSION = "1.0"


class Asked(NamedTuple):
    """Everything the filters read."""

    request: Request
    device: Device
    policy: Policy
    environment: Environment
    snapshot: Snapshot
    entries: tuple[Entry, ...]  # the quarantine entries and gaps whose box the request lies in
    forced: str | None
    named: frozenset[str]


Refusal = tuple[str, tuple[Reason, ...]]  # (stage, reasons)


def static_refusals(asked: Asked, arch: str | None) -> list[Refusal | None]:
    """Per backend, the first refusal that does not depend on the request.

    arch: the architecture that a certificate must be for; None where one for any will do.
    """
    return [_first_refusal(manifest, asked, arch) for manifest in asked.snapshot.manifests]


def _first_refusal(manifest: Manifest, asked: Asked, arch: str | None) -> Refusal | None:
    return next((refusal for refusal in _stages(manifest, asked, arch) if refusal[1]), None)


def _stages(manifest: Manifest, asked: Asked, arch: str | None) -> Iterator[Refusal]:
    yield "policy", _policy(manifest, asked)
    yield "version", _api_version(manifest)
    yield "version", _requirements(manifest, asked.environment)
    yield "load", _load(manifest, asked.snapshot)
    yield "certificate", _certificate(manifest, asked, arch)
    yield "numerics", _numerics(manifest, asked.policy)


def _policy(manifest: Manifest, asked: Asked) -> tuple[Reason, ...]:
    policy, name = asked.policy, manifest.name
    if name in policy.block:
        return (_reason("blocked", name, "not blocked", f"{name} is blocked by the policy", "policy block"),)
    if policy.only is not None and name not in policy.only:
        only = "{" + ", ".join(sorted(policy.only)) + "}"
        return (_reason("not_in_only", name, only, f"{name} is not in only = {only}", "policy only"),)
    return ()


def forbidden_reference(manifest: Manifest, asked: Asked) -> tuple[Reason, ...]:
    """Why a backend that fits is out all the same: asked last, so that it is said of those alone that would serve."""
    if not asked.policy.forbid_reference or manifest.tier != "reference" or asked.forced == manifest.name:
        return ()
    text = f"{manifest.name} is of tier reference, which the policy forbids"
    return (_reason("blocked", "tier reference", "tier standard", text, f"policy {REFERENCE_FORBIDDEN}"),)


def _api_version(manifest: Manifest) -> tuple[Reason, ...]:
    if fits(manifest.api, API_VERSION):
        return ()
    want = str(manifest.api)
    text = f"written for backend API {want}, this is {API_VERSION}"
    hint = "install a release of the backend for this API"
    return (Reason("api_version", "api_version", API_VERSION, want, text, manifest.label, hint),)


def _requirements(manifest: Manifest, environment: Environment) -> tuple[Reason, ...]:
    missing = []
    for requirement in manifest.requires:
        if not environment.meets(requirement):
            got = environment.version(requirement.name) or "not installed"
            want = str(requirement.specifier) or "any version"
            text = f"requires {requirement}, got {got}"
            hint = f"pip install '{requirement}'"
            missing.append(Reason("requirement", requirement.name, got, want, text, manifest.label, hint))
    return tuple(missing)


def _load(manifest: Manifest, snapshot: Snapshot) -> tuple[Reason, ...]:
    text = snapshot.failures.get(manifest.name)
    if text is not None:
        return (Reason("load_error", "load_error", "failed to load", "a backend that loads", text, manifest.label),)
    text = snapshot.derived.get("unreadable_gaps", {}).get(manifest.name)
    if text is not None:
        return (Reason("load_error", "load_error", "an illegal gaps file", "a legal one", text, manifest.label),)
    return ()


def _certificate(manifest: Manifest, asked: Asked, arch: str | None) -> tuple[Reason, ...]:
    if manifest.origin != "third_party" or manifest.name in asked.named:
        return ()
    held = certified_architectures(manifest, asked.environment.certificates)
    if arch in held or (arch is None and held):
        return ()
    want = "a certificate" if arch is None else f"a certificate for {arch}"
    got = _other_certificate(manifest, asked.environment, held)
    hint = f"attn-backends conformance run {manifest.name} --certify, or name it in the call or policy"
    text = f"third-party backend without a valid certificate ({got})"
    return (Reason("not_certified", "not_certified", got, want, text, manifest.label, hint),)


def _other_certificate(manifest: Manifest, environment: Environment, held: frozenset[str]) -> str:
    """What there is in place of the certificate that is wanted."""
    if held:
        return f"a certificate for {', '.join(sorted(held))} alone"
    named = any(name == manifest.name for name, *_ in environment.certificates)
    return "a certificate for other sources" if named else "no certificate"


def _numerics(manifest: Manifest, policy: Policy) -> tuple[Reason, ...]:
    if manifest.numerics in policy.numerics:
        return ()
    want = "{" + ", ".join(sorted(policy.numerics)) + "}"
    text = f"numerics {manifest.numerics} is not allowed here, only {want}"
    allowed = sorted({*policy.numerics, manifest.numerics})
    listed = ", ".join(f'"{one}"' for one in allowed)
    hint = f"Policy(numerics={{{listed}}}) allows it, on a command line --numerics {','.join(allowed)}"
    return (Reason("numerics", "numerics", manifest.numerics, want, text, manifest.label, hint),)


def quarantine_reasons(manifest: Manifest, asked: Asked) -> tuple[Reason, ...]:
    """The quarantine entries and gaps that this request falls into on this backend."""
    if not asked.entries:
        return ()
    return tuple(
        entry.refuse(asked.request)
        for entry in asked.entries
        if not (entry.code == "quarantine" and asked.policy.allow_quarantined)
        and entry.applies(manifest, asked.environment)
    )


def _reason(code: str, got: str, want: str, message: str, source: str) -> Reason:
    return Reason(code, code, got, want, message, source)
