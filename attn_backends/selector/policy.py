"""`Policy`: what the user allows, forbids and prefers. Frozen and hashable; loadable from TOML."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from attn_backends.box import nearest_names
from attn_backends.errors import PolicyError
from attn_backends.registry.manifest import NUMERICS
from attn_backends.selector.conditions import Conditions, parse_conditions

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.registry.knobs import Knobs
    from attn_backends.request import Request

_SETS = ("only", "block", "trust", "numerics")
_ORDERS = ("prefer", "rank_hooks")
_RANKING = ("prefer", "rank_hooks", "pin")
_FLAGS = ("allow_downcast", "allow_quarantined", "forbid_reference")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Where `when` holds, `then` is laid over the policy."""

    when: Conditions
    then: tuple[tuple[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """As it is written in TOML."""
        return {"when": self.when.to_json(), **{name: _plain(value) for name, value in self.then}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What may be chosen, and what is preferred.

    only: the set of backends to use; None = all. block: never these. prefer: an order, best first. pin: the one backend
    for every call; a call it cannot serve raises. numerics: out of exact, quantized, approximate. allow_downcast: a
    float32 call may run in bfloat16 or float16, recorded. allow_quarantined: known-bad combinations too.
    forbid_reference: falling to a reference-tier backend is an error. trust: third parties that need no certificate.
    rank_hooks: plugins whose order counts. rules: conditions with any of the above, laid over in order.
    Raises PolicyError for a value that is not legal, and for an unknown key, with the nearest legal one.
    """

    only: frozenset[str] | None = None
    block: frozenset[str] = frozenset()
    prefer: tuple[str, ...] = ()
    pin: str | None = None
    numerics: frozenset[str] = frozenset({"exact"})
    allow_downcast: bool = False
    allow_quarantined: bool = False
    forbid_reference: bool = False
    trust: frozenset[str] = frozenset()
    rank_hooks: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()

    text: str = dataclasses.field(init=False, repr=False, compare=False, default="")  # itself as JSON, for graphs

    def __new__(cls, *_values: Any, **named: Any) -> Self:
        """Refuse unknown keys, which a dataclass answers with a TypeError."""
        _check_keys(named)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name in _FIELDS:
            object.__setattr__(self, name, _checked(name, getattr(self, name)))
        object.__setattr__(self, "text", json.dumps(self.to_json(), sort_keys=True))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Policy:
        """Read a dict such as TOML gives. Raises PolicyError, with the nearest legal key."""
        if not isinstance(data, Mapping):
            raise PolicyError(f"policy: got {data!r}; allowed: a table of {', '.join(_FIELDS)}")
        _check_keys(data)
        return cls(**dict(data))

    @classmethod
    def from_toml(cls, path: str | Path) -> Policy:
        """Read a policy file; its keys stand at the top, or under `[policy]`."""
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise PolicyError(f"policy file {Path(path).name}: {getattr(error, 'strerror', None) or error}") from None
        return cls.from_dict(data.get("policy", data) if set(data) <= {"policy"} else data)

    def to_json(self) -> dict[str, Any]:
        """Every field that is not at its default, as plain values; `from_dict` reads it."""
        return {name: _plain(value) for name in _FIELDS if (value := getattr(self, name)) != _DEFAULTS[name]}

    def named(self) -> frozenset[str]:
        """Backends that this policy names, and by that lets in without a certificate."""
        pinned = {self.pin} if self.pin else set()
        return frozenset((self.only or frozenset()) | set(self.prefer) | pinned | self.trust)

    def for_request(self, request: Request, device: Device) -> Policy:
        """This policy with every rule laid over it whose conditions hold; no rules are left in it.

        Of a rule that hangs on the batch, a batch-invariant request takes what it allows and bans, not what it ranks.
        """
        if not self.rules:
            return self
        changes: dict[str, Any] = {"rules": ()}
        current = dataclasses.replace(self, **changes)
        for rule in self.rules:
            if rule.when.hold(request, device):
                unranked = request.batch_invariant and rule.when.of_the_batch
                current = current.overlaid(
                    {name: value for name, value in rule.then if not (unranked and name in _RANKING)}
                )
        return current

    def unranked(self) -> Policy:
        """This policy without what ranks: neither an order nor a pin, in its rules neither."""
        rules = tuple(
            Rule(when=rule.when, then=tuple(pair for pair in rule.then if pair[0] not in _RANKING))
            for rule in self.rules
        )
        return dataclasses.replace(self, prefer=(), rank_hooks=(), pin=None, rules=rules)

    def overlaid(self, changes: Mapping[str, Any]) -> Policy:
        """Another policy laid over this one.

        Sets of bans and trust grow, orders go in front, rules come after the ones there are, the rest replaces.
        """
        merged: dict[str, Any] = dict(changes)
        if "rules" in merged:
            merged["rules"] = self.rules + _checked("rules", merged["rules"])
        for name in ("block", "trust"):
            if name in merged:
                merged[name] = getattr(self, name) | _checked(name, merged[name])
        if "only" in merged and self.only is not None and merged["only"] is not None:
            merged["only"] = self.only & _checked("only", merged["only"])
        for name in _ORDERS:
            if name in merged:
                front = _checked(name, merged[name])
                merged[name] = front + tuple(item for item in getattr(self, name) if item not in front)
        return dataclasses.replace(self, **merged)


_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Policy) if field.init}
_FIELDS = tuple(_DEFAULTS)


def policy_keys() -> dict[str, tuple[str, str]]:
    """Every key of a policy file: what is legal under it, and what holds where it is left out."""
    special = {
        "numerics": f"a non-empty list out of {', '.join(NUMERICS)}",
        "pin": "a backend's name",
        "rules": "one [[rules]] table per rule",
    }
    kinds = {
        **dict.fromkeys(_FLAGS, "true or false"),
        **dict.fromkeys((*_SETS, *_ORDERS), "a list of names"),
        **special,
    }
    return {name: (kinds[name], _default_text(default)) for name, default in _DEFAULTS.items()}


def _default_text(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return "not set" if default is None else json.dumps(_plain(default))


def _check_keys(keys: Iterable[Any]) -> None:
    for name in keys:
        if name not in _FIELDS:
            raise PolicyError(f"policy {name}: unknown key; {nearest_names(name, _FIELDS)}")


def _checked(name: str, value: Any) -> Any:
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise PolicyError(f"policy {name}: got {value!r}; allowed: true or false")
        return value
    if name == "pin":
        if value is not None and not isinstance(value, str):
            raise PolicyError(f"policy pin: got {value!r}; allowed: none or a backend name")
        return value
    if name == "rules":
        if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
            raise PolicyError(f"policy rules: got {value!r}; allowed: a list of rules")
        return tuple(_rule(index, rule) for index, rule in enumerate(value, 1))
    if value is None and name == "only":
        return None
    return _checked_names(name, value)


def _checked_names(name: str, value: Any) -> Any:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise PolicyError(f"policy {name}: got {value!r}; allowed: a list of names")
    items = tuple(value)
    if not all(isinstance(item, str) for item in items):
        raise PolicyError(f"policy {name}: got {value!r}; allowed: a list of names")
    if name == "numerics":
        strange = [item for item in items if item not in NUMERICS]
        if strange or not items:
            raise PolicyError(
                f"policy numerics: got {list(items)!r}; allowed: a non-empty set out of {', '.join(NUMERICS)}"
            )
    return frozenset(items) if name in _SETS else tuple(dict.fromkeys(items))


def _rule(index: int, raw: Any) -> Rule:
    if isinstance(raw, Rule):
        return raw
    if not isinstance(raw, Mapping) or "when" not in raw:
        raise PolicyError(f"policy rule {index}: a rule is a table with `when` and what then holds; got {raw!r}")
    changes = {name: value for name, value in raw.items() if name != "when"}
    legal = [name for name in _FIELDS if name != "rules"]
    for name in changes:
        if name not in legal:
            raise PolicyError(f"policy rule {index} {name}: unknown key; {nearest_names(name, [*legal, 'when'])}")
    when = parse_conditions(raw["when"], lambda text: PolicyError(f"policy rule {index} when {text}"))
    return Rule(when=when, then=tuple(sorted((name, _checked(name, value)) for name, value in changes.items())))


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [item.to_json() if isinstance(item, Rule) else item for item in value]
    return value


_DEFAULT = Policy()


def effective_policy(policy: Policy | None, knobs: Knobs) -> Policy:
    """The call's policy with the environment's knobs laid over it."""
    base = policy or _DEFAULT
    changes: dict[str, Any] = {}
    if knobs.block:
        changes["block"] = knobs.block
    if knobs.only is not None:
        changes["only"] = knobs.only
    if knobs.pin:
        changes["pin"] = knobs.pin
    if knobs.strict:
        changes["forbid_reference"] = True
    return base.overlaid(changes) if changes else base
