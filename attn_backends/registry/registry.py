"""`Registry`: the backends of this process. Thread-safe; readers work on immutable snapshots.

Listing runs no plugin code; `load` runs a backend's own, once, isolated, and remembers a failure; `run_check` runs its
declared check, isolated. Nothing here imports torch.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attn_backends.box import nearest_names
from attn_backends.capability import TABLE, Row
from attn_backends.errors import DuplicateBackendError, LoadError, ManifestError, UnknownBackendError
from attn_backends.reason import Reason
from attn_backends.registry import discovery
from attn_backends.registry.discovery import Broken, Found, plain_name
from attn_backends.registry.loading import Loaded, load_backend, load_callable
from attn_backends.registry.manifest import Manifest, read_manifest, read_manifest_file

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.request import Request


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """The registry at one moment. `generation` differs between any two snapshots of a process."""

    manifests: tuple[Manifest, ...]
    broken: tuple[Broken, ...]
    failures: Mapping[str, str]  # backend -> what its load said
    generation: int
    digest: str
    table: tuple[Row, ...] = TABLE
    derived: dict[str, Any] = field(default_factory=dict)  # what readers computed from this snapshot, by name

    def get(self, name: str) -> Manifest:
        """The manifest of this name. Raises UnknownBackendError with the nearest names."""
        for manifest in self.manifests:
            if manifest.name == name:
                return manifest
        why = next((item.error for item in self.broken if item.name == name), None)
        if why is not None:
            raise UnknownBackendError(f"backend {name!r} is broken: {why}")
        raise UnknownBackendError(f"no backend {name!r}; {nearest_names(name, self.names())}")

    def names(self) -> tuple[str, ...]:
        """Every usable name, sorted."""
        return tuple(manifest.name for manifest in self.manifests)


class Registry:
    """Built-in, installed and in-process backends. `autoload=False` leaves other distributions out."""

    def __init__(self, *, builtin: bool = True, autoload: bool | None = True, table: tuple[Row, ...] = TABLE) -> None:
        self._lock = threading.RLock()
        self._builtin = builtin
        self._autoload = autoload
        self._table = table
        self._manifests: dict[str, Manifest] | None = None
        self._registered: dict[str, Manifest] = {}
        self._unregistered: set[str] = set()
        self._broken: list[Broken] = []
        self._failures: dict[str, str] = {}
        self._loaded: dict[str, Loaded] = {}
        self._loading: dict[str, threading.RLock] = {}
        self._checks: dict[str, tuple[Manifest, Callable[..., Any]]] = {}
        self._generation = 0
        self.alignment_matters = True  # whether any box asks for more than a byte
        self.changes = 0  # counts every change; cheap to read on a hot path
        self._snapshot: Snapshot | None = None

    def snapshot(self) -> Snapshot:
        """What is registered now; the same object until something changes."""
        current = self._snapshot
        return current if current is not None else self._take_snapshot()

    def register(
        self,
        manifest: Manifest | Mapping[str, Any] | str | Path,
        fn: Callable[..., None] | None = None,
        **callables: Any,
    ) -> Manifest:
        """Add a backend in-process; it needs no certificate.

        `manifest` is a dict, a path to a `backend.toml`, or a `Manifest`; `fn` is its `run(call)`. Further callables by
        role: `backward`, `plan`, `check`, `workspace`. They take the place of those that the manifest names. Raises ManifestError, or DuplicateBackendError if the name is
        taken; either way nothing is changed.
        """
        functions = {role: given for role, given in {"kernel": fn, **callables}.items() if given is not None}
        made = _as_manifest(manifest, functions, self._table)
        with self._lock:
            manifests = self._discovered()
            for name in manifests:
                if plain_name(name) == plain_name(made.name):
                    raise DuplicateBackendError(
                        f"backend {made.name!r} is already registered from {manifests[name].label}; "
                        f"unregister({name!r}) first, or choose another name"
                    )
            manifests[made.name] = self._registered[made.name] = made
            self._forget(made.name)
        return made

    def unregister(self, name: str) -> None:
        """Take a backend out, a built-in one too; `refresh` does not bring it back. Raises UnknownBackendError."""
        with self._lock:
            self.snapshot().get(name)
            del self._discovered()[name]
            self._registered.pop(name, None)
            self._unregistered.add(name)
            self._forget(name)

    def refresh(self) -> None:
        """Look for installed backends again; what was registered in this process stays, what was unregistered too."""
        with self._lock:
            self._manifests = None
            self._broken = []
            self._failures.clear()
            self._loaded.clear()
            self._checks.clear()
            self._changed()

    def invalidate(self) -> None:
        """Have every decision over this registry made anew, though the backends are the same."""
        with self._lock:
            self._changed()

    def load(self, name: str) -> Loaded:
        """A backend's callables, imported on first use. Raises LoadError; the failure is remembered and reported."""
        found = self._loaded.get(name)
        if found is not None:
            return found
        with self._lock:
            loading = self._loading.setdefault(name, threading.RLock())
        # Outside the registry's lock: a module may register at import, and another thread be importing it right now.
        with loading:
            while True:
                manifest = self.snapshot().get(name)
                loaded = self._loaded_before(name) or _load(manifest)
                if self._keep(manifest, loaded):
                    break  # else it was registered anew meanwhile, and what was loaded is of the one before
        if isinstance(loaded, LoadError):
            raise loaded
        return loaded

    def _loaded_before(self, name: str) -> Loaded | LoadError | None:
        with self._lock:
            return LoadError(self._failures[name]) if name in self._failures else self._loaded.get(name)

    def _keep(self, manifest: Manifest, loaded: Loaded | LoadError) -> bool:
        """Remember what loading a manifest gave, unless another has taken its place."""
        with self._lock:
            if self._discovered().get(manifest.name) is not manifest:
                return False
            if isinstance(loaded, Loaded):
                self._loaded[manifest.name] = loaded
            elif manifest.name not in self._failures:
                self.remember_failure(manifest.name, str(loaded))
            return True

    def remember_failure(self, name: str, text: str) -> None:
        """Note that a backend cannot be loaded; decisions are made anew without it."""
        with self._lock:
            self._failures[name] = text
            self._changed()

    def run_check(self, manifest: Manifest, request: Request, device: Device) -> tuple[Reason, ...]:
        """The reasons of a backend's own `check`; one that raises, or returns no reasons, is itself a reason."""
        if not manifest.offers("check"):
            return ()
        try:
            owner, check = self._checks.get(manifest.name, (None, None))
            if check is None or owner is not manifest:
                check = load_callable(manifest, "check")
                self._checks[manifest.name] = (manifest, check)
            reasons = tuple(check(request, device) or ())
            if reasons and not all(isinstance(reason, Reason) for reason in reasons):
                raise TypeError(f"check returned {reasons!r}, not a list of Reason")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # the check is plugin code
            text = f"check of {manifest.name} raised {type(error).__name__}: {error}"
            return (Reason("check", "check", type(error).__name__, "a list of reasons", text, manifest.label),)
        return reasons

    def _discovered(self) -> dict[str, Manifest]:
        if self._manifests is None:
            founds = [discovery.builtin(table=self._table)] if self._builtin else []
            if self._autoload:
                founds.append(discovery.third_party(self._table))
            found = discovery.without_duplicates(founds) if founds else Found((), ())
            there = {manifest.name: manifest for manifest in found.manifests if manifest.name not in self._unregistered}
            self._manifests = {**there, **self._registered}
            self._broken = list(found.broken)
        return self._manifests

    def _forget(self, name: str) -> None:
        self._failures.pop(name, None)
        self._loaded.pop(name, None)
        self._checks.pop(name, None)
        self._changed()

    def _changed(self) -> None:
        self._snapshot = None
        self.changes += 1

    def _take_snapshot(self) -> Snapshot:
        with self._lock:
            if self._snapshot is None:
                manifests = tuple(sorted(self._discovered().values(), key=lambda manifest: manifest.name))
                self._generation += 1
                self.alignment_matters = any("alignment" in box.raw for one in manifests for box in one.boxes)
                self._snapshot = Snapshot(
                    manifests=manifests,
                    broken=tuple(self._broken),
                    failures=MappingProxyType(dict(self._failures)),
                    generation=self._generation,
                    digest=_digest(manifests, self._failures),
                    table=self._table,
                )
            return self._snapshot


def _as_manifest(
    given: Manifest | Mapping[str, Any] | str | Path, functions: dict[str, Callable[..., Any]], table: tuple[Row, ...]
) -> Manifest:
    for role, function in functions.items():
        if role not in ("kernel", "backward", "plan", "check", "workspace") or not callable(function):
            raise ManifestError(
                f"register: {role} = {function!r}; allowed: callables for fn, backward, plan, check, workspace"
            )
    if isinstance(given, Manifest):
        return dataclasses.replace(given, functions={**given.functions, **functions}) if functions else given
    if isinstance(given, Mapping):
        label = f"register({given.get('name', '?')})"
        return read_manifest(
            copy.deepcopy(dict(given)), label=label, origin="in_process", functions=functions, table=table
        )
    if not isinstance(given, str | Path):
        raise ManifestError(
            f"register: got {given!r}; allowed: a manifest (dict or Manifest) or a path to a backend.toml"
        )
    path = Path(given)
    made = read_manifest_file(path, label=f"{path.parent.name}/{path.name}", origin="in_process", table=table)
    made.functions.update(functions)
    return made


def _load(manifest: Manifest) -> Loaded | LoadError:
    try:
        return load_backend(manifest)
    except LoadError as error:
        return error


def _digest(manifests: tuple[Manifest, ...], failures: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for manifest in manifests:
        digest.update(f"{manifest.name} {manifest.version} {manifest.origin} {manifest.digest}\n".encode())
    for name in sorted(failures):
        digest.update(f"failed {name}\n".encode())
    return digest.hexdigest()[:16]


_default: Registry | None = None
_default_lock = threading.Lock()


def default_registry() -> Registry:
    """The process's registry; honours ATTN_BACKENDS_AUTOLOAD when it is first used."""
    global _default
    if _default is None:
        from attn_backends.registry.knobs import current_knobs

        with _default_lock:
            if _default is None:
                _default = Registry(autoload=current_knobs().autoload)
    return _default
