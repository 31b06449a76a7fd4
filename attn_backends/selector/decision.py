"""`Decision`: what was chosen for a request, and why not the others, as a record.

`explain()` renders it, `to_json`/`from_json` carry it, `replay()` decides again and reports differences, `load()` binds
the chosen kernel for hot loops. Imports no torch.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from attn_backends.device import Device
from attn_backends.errors import AttnBackendsError
from attn_backends.reason import Reason, frozen, plain, show
from attn_backends.registry.environment import Environment
from attn_backends.request import Request
from attn_backends.selector.log.scrub import scrub
from attn_backends.selector.policy import Policy

if TYPE_CHECKING:
    from attn_backends.registry.manifest import Manifest
    from attn_backends.registry.registry import Registry

SCHEMA = "attn.decision/1"
SOURCES = ("explicit", "scope", "prefer", "rank_hook", "measured", "cost_model", "priority")


class Candidate(NamedTuple):
    """One backend's standing. `status`: selected, outranked or rejected; `stage`: the filter that rejected it.

    `measured_at`: when its time was measured (UTC, ISO); `measured_by`: of its own bucket, or of the neighbours.
    A tuple, since every decision makes as many as there are backends: a frozen dataclass takes five times as long.
    """

    name: str
    version: str
    tier: str
    numerics: str
    status: str
    stage: str
    reasons: tuple[Reason, ...] = ()
    rank: int | None = None
    predicted_ms: float | None = None
    measured_ms: float | None = None
    measured_at: str | None = None
    measured_by: str | None = None
    conversions: tuple[str, ...] = ()

    @classmethod
    def rejected(cls, manifest: Manifest, stage: str, reasons: tuple[Reason, ...]) -> Candidate:
        """A backend that a filter is against."""
        return cls(manifest.name, manifest.version, manifest.tier, manifest.numerics, "rejected", stage, reasons)

    def to_json(self) -> dict[str, Any]:
        """Plain values only; texts without absolute paths, which the error of a failed import may hold."""
        return {
            "name": self.name, "version": self.version, "tier": self.tier, "numerics": self.numerics,
            "status": self.status, "stage": self.stage, "reasons": scrub([reason.to_json() for reason in self.reasons]),
            "rank": self.rank, "predicted_ms": self.predicted_ms, "measured_ms": self.measured_ms,
            "measured_at": self.measured_at, "measured_by": self.measured_by,
            "conversions": list(self.conversions),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Candidate:
        """Read `to_json`'s dict."""
        reasons = tuple(Reason.from_json(reason) for reason in data["reasons"])
        return cls(**{**data, "reasons": reasons, "conversions": tuple(data["conversions"])})


@dataclass(frozen=True, slots=True)
class Change:
    """One step of a relaxation: on `axis`, ask for `want` instead of `got` (None: no value would do).

    `part` is what of the axis is meant where it has several: `seq_q` or `seq_k` of `seq_len`.
    """

    axis: str
    got: Any
    want: Any
    part: str | None = None

    def __str__(self) -> str:
        return f"{self.part or self.axis} {show(self.got)} -> {show(self.want)}"

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        part = {} if self.part is None else {"part": self.part}
        return {"axis": self.axis, **part, "got": plain(self.got), "want": plain(self.want)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Change:
        """Read `to_json`'s dict."""
        return cls(data["axis"], frozen(data["got"]), frozen(data["want"]), data.get("part"))


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The smallest change of the request that would make one rejected backend fit."""

    backend: str
    changes: tuple[Change, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        return {"backend": self.backend, "changes": [change.to_json() for change in self.changes]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Relaxation:
        """Read `to_json`'s dict."""
        return cls(data["backend"], tuple(Change.from_json(change) for change in data["changes"]))


class Written(NamedTuple):
    """The records of a decision: every backend, best first, and the smallest changes that make refused ones fit."""

    candidates: tuple[Candidate, ...]
    nearest: tuple[Relaxation, ...]


class Records:
    """The records of a decision, given or still to be written: `write` is called when they are first read."""

    __slots__ = ("_write", "_written")

    def __init__(self, write: Callable[[], Written] | None, written: Written | None = None) -> None:
        self._write = write
        self._written = written

    def read(self) -> Written:
        """The records; written once (by two threads at once, twice the same)."""
        written = self._written
        if written is None:
            assert self._write is not None
            written = self._written = self._write()
        return written

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied and pickled as written."""
        return Records, (None, self.read())

    def __repr__(self) -> str:
        return repr(self.read())


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """A backend that was chosen by name, and by whom: explicit or scope."""

    name: str
    source: str


@dataclass(frozen=True, slots=True)
class Replay:
    """A decision made again: the new one, and every difference in words; none means it stands."""

    decision: Decision
    differences: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether nothing changed."""
        return not self.differences


@dataclass(frozen=True, kw_only=True, eq=False)
class Decision:
    """The answer to one request. `backend` is None when nothing fits; `candidates` has every backend, best first.

    `records` are what `candidates` and `nearest` read.
    """

    request: Request
    backend: str | None
    source: str | None
    records: Records
    environment: Environment
    device: Device
    policy: Policy
    registry: str  # digest of the registry's contents
    forced: Forced | None = None
    identity: tuple[Any, ...] = ()  # the request in bucketed form, and what the times depend on
    stored_id: str | None = None
    origin: Registry | None = field(default=None, repr=False)
    downcast: str | None = None  # dtype the backend runs in, when it is not the request's

    @functools.cached_property
    def id(self) -> str:
        """Digest of the bucketed request, registry, policy, device, environment and measurements; 16 hex digits."""
        if self.stored_id is not None:
            return self.stored_id
        forced = [self.forced.name, self.forced.source] if self.forced else None
        parts = [
            plain(self.identity), self.registry, self.policy.to_json(), self.device.to_json(),
            self.environment.to_json(), forced,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()[:16]

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: the record with its id, without the registry that made it."""
        return {**vars(self), "stored_id": self.id, "identity": (), "origin": None}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decision) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every backend's record, best first."""
        return self.records.read().candidates

    @property
    def nearest(self) -> tuple[Relaxation, ...]:
        """For every backend whose boxes refuse the request, the smallest change that would make it fit."""
        return self.records.read().nearest

    @property
    def chosen(self) -> Candidate | None:
        """The winner's own record."""
        return next((candidate for candidate in self.candidates if candidate.status == "selected"), None)

    @property
    def tier(self) -> str | None:
        """Tier of the winner; `reference` means that nothing better fits."""
        return self.chosen.tier if self.chosen else None

    def candidate(self, name: str) -> Candidate:
        """The record of one backend. Raises UnknownBackendError."""
        from attn_backends.box import nearest_names
        from attn_backends.errors import UnknownBackendError

        for candidate in self.candidates:
            if candidate.name == name:
                return candidate
        raise UnknownBackendError(
            f"no backend {name!r}; {nearest_names(name, [c.name for c in self.candidates])}", decision=self
        )

    def explain(self) -> str:
        """The whole decision as text, rendered from the record."""
        from attn_backends.selector.log.line import record_text

        return record_text(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The record, schema `attn.decision/1`."""
        return {
            "schema": SCHEMA, "id": self.id, "backend": self.backend, "source": self.source,
            "request": self.request.to_json(), "device": self.device.to_json(), "policy": self.policy.to_json(),
            "forced": {"name": self.forced.name, "source": self.forced.source} if self.forced else None,
            "registry": self.registry, "environment": self.environment.to_json(), "downcast": self.downcast,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "nearest": [relaxation.to_json() for relaxation in self.nearest],
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any] | str) -> Decision:
        """Read a record (dict or text). Raises ValueError for another schema, and for a key it cannot read."""
        record = json.loads(data) if isinstance(data, str | bytes) else data
        schema = record.get("schema") if isinstance(record, dict) else type(record).__name__
        if schema != SCHEMA:
            raise ValueError(f"not a decision record: schema {schema!r}, want {SCHEMA!r}")
        parts = {name: _part(record, key, read) for name, (key, read) in _PARTS.items()}
        written = Written(parts.pop("candidates"), parts.pop("nearest"))
        return cls(**parts, records=Records(None, written))

    def replay(self, *, registry: Registry | None = None, environment: Environment | None = None) -> Replay:
        """Decide again with today's registry, on the same request, device, policy and (unless given) environment."""
        from attn_backends.selector.replay import replay

        return replay(self, registry=registry or self.origin, environment=environment)

    def load(self) -> Callable[..., Any]:
        """The chosen kernel bound for hot loops: `fn(q, k, v, **tensors)` with no dispatch left in it. Imports torch.

        Raises NoBackendError (or its cause) where nothing was chosen, LoadError where the backend does not import.
        """
        from attn_backends.selector.refusal import raise_unless_chosen

        raise_unless_chosen(self)
        return _binder()(self)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _each(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda items: tuple(read(item) for item in items)


_MAY_BE_MISSING = ("forced", "downcast")
_PARTS: dict[str, tuple[str, Callable[[Any], Any]]] = {  # field -> (key of the record, its reader)
    "stored_id": ("id", _text),
    "backend": ("backend", _optional_text),
    "source": ("source", _optional_text),
    "request": ("request", Request.from_json),
    "device": ("device", Device.from_json),
    "policy": ("policy", Policy.from_dict),
    "forced": ("forced", lambda forced: Forced(**forced) if forced else None),
    "registry": ("registry", _text),
    "environment": ("environment", Environment.from_json),
    "downcast": ("downcast", _optional_text),
    "candidates": ("candidates", _each(Candidate.from_json)),
    "nearest": ("nearest", _each(Relaxation.from_json)),
}


def _part(record: dict[str, Any], key: str, read: Callable[[Any], Any]) -> Any:
    """One part of a record, read. Raises ValueError with its key, whatever is wrong with it."""
    if key not in record:
        if key in _MAY_BE_MISSING:
            return None
        raise ValueError(f"decision record {key}: missing")
    try:
        return read(record[key])
    except KeyError as error:
        raise ValueError(f"decision record {key}: {error.args[0]} is missing") from None
    except (AttnBackendsError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"decision record {key}: {error}") from None


def _binder() -> Callable[[Decision], Callable[..., Any]]:
    """The host's `bind`, by name: the selector does not import the layer above it."""
    import importlib

    return importlib.import_module("attn_backends.host.loaded_kernel").bind  # type: ignore[no-any-return]  # it has this type
