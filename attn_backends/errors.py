"""Every error this package raises on purpose: one class per cause, all under `AttnBackendsError`.

    AttnBackendsError
    |- RequestError (ValueError)      the call asks for something that is not a legal attention call
    |- UnknownBackendError            a name that no registered backend has
    |- UnfitBackendError              a forced backend cannot serve the call
    |- NoBackendError                 nothing registered can serve the call
    |  '- ReferenceForbiddenError     only the reference could, and the policy forbids it
    |- DuplicateBackendError          two backends claim one name
    |- ManifestError                  a backend.toml (or dict) that is not a legal manifest
    |- LoadError                      a backend's code failed to import or lacks what its manifest promises
    |- PolicyError                    a policy or knob that is not legal
    '- OutOfPagesError                the paged KV cache has no free page left

Anybody may import this module; it imports the standard library alone.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attn_backends.selector.decision import Decision


class AttnBackendsError(Exception):
    """Base of every deliberate error; `decision` is the `Decision` behind it, where there is one."""

    def __init__(self, message: str, *, decision: Decision | None = None) -> None:
        super().__init__(message)
        self.decision = decision


class RequestError(AttnBackendsError, ValueError):
    """The call itself is not legal: `field` had `value`, `allowed` says what would be."""

    def __init__(self, field: str, value: Any, allowed: str, *, hint: str | None = None) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        self.hint = hint
        text = f"{field}: got {value!r}; allowed: {allowed}"
        super().__init__(f"{text}. {hint}" if hint else text)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied and pickled by what it was made from, not by its text."""
        return functools.partial(type(self), hint=self.hint), (self.field, self.value, self.allowed), vars(self)


class UnknownBackendError(AttnBackendsError):
    """No registered backend has this name; the message lists the nearest ones."""


class UnfitBackendError(AttnBackendsError):
    """An explicitly chosen backend cannot serve the call; it is never swapped silently."""


class NoBackendError(AttnBackendsError):
    """No backend can serve the call; the message is the whole explanation."""


class ReferenceForbiddenError(NoBackendError):
    """Only a reference-tier backend fits and the policy has `forbid_reference`."""


class DuplicateBackendError(AttnBackendsError):
    """Two backends claim the same name; neither silently wins."""


class ManifestError(AttnBackendsError):
    """A manifest is malformed; the message names file, entry and line where they are known."""


class LoadError(AttnBackendsError):
    """A backend's module failed to import, or lacks the callable that its manifest names."""


class PolicyError(AttnBackendsError):
    """A policy, rule or knob is malformed; the message names the nearest legal key."""


class OutOfPagesError(AttnBackendsError):
    """A paged KV cache was asked for more pages than it has; nothing was changed."""
