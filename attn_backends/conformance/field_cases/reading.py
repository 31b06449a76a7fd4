"""Reading a file of field cases: every `[[case]]` with the file's defaults, and a relation's variant laid over it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHIPPED = Path(__file__).with_name("cases.toml")
KINDS = ("value", "property", "request-error", "decision")
DTYPES = ("float32", "float16", "bfloat16")
UNSET = "unset"

Table = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One case: its own table, and the defaults of its file (request, device, box)."""

    id: str
    kind: str
    family: str
    table: Table
    defaults: Table

    @property
    def clause(self) -> str:
        """The rule that the case checks, in words; "" where none is named."""
        return str(self.table.get("clause", ""))

    @property
    def needs_tensors(self) -> bool:
        """Whether the case runs attention (or its helpers) on tensors, once per dtype."""
        return "rig" in self.table or "call" in self.table

    @property
    def dtypes(self) -> tuple[str | None, ...]:
        """The dtypes to run it in; one None for a case without tensors."""
        return tuple(self.table.get("dtypes", DTYPES)) if self.needs_tensors else (None,)

    def get(self, key: str, default: Any = None) -> Any:
        """A key of the case."""
        return self.table.get(key, default)

    def with_variant(self) -> Case:
        """The case with `[case.variant]` laid over it."""
        plain = {key: value for key, value in self.table.items() if key != "variant"}
        table = laid_over(plain, self.table.get("variant", {}))
        return Case(id=self.id, kind=self.kind, family=self.family, table=table, defaults=self.defaults)


def laid_over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """Tables merge key by key, "unset" removes a key, everything else replaces."""
    merged = dict(base)
    for key, value in changes.items():
        if value == UNSET:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            below = merged.get(key)
            merged[key] = laid_over(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def read_cases(path: str | Path = SHIPPED) -> tuple[Case, ...]:
    """Every case of a file, in its order. Raises ValueError for a case without id, an unknown kind or an id used twice."""
    data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    defaults = {**_shipped_defaults(), **data.get("defaults", {})}
    cases = tuple(_case(index, table, defaults) for index, table in enumerate(data.get("case", ()), 1))
    seen: set[str] = set()
    for case in cases:
        if case.id in seen:
            raise ValueError(f"{Path(path).name}: case id {case.id!r} is used twice")
        seen.add(case.id)
    return cases


def _shipped_defaults() -> Table:
    defaults: Table = tomllib.loads(SHIPPED.read_text(encoding="utf-8"))["defaults"]
    return defaults


def _case(index: int, table: Table, defaults: Table) -> Case:
    name = table.get("id")
    if not isinstance(name, str):
        raise ValueError(f"case {index}: it has no id")
    kind = table.get("kind")
    if kind not in KINDS:
        raise ValueError(f"case {name}: kind {kind!r} is none of {', '.join(KINDS)}")
    return Case(id=name, kind=kind, family=table.get("family", ""), table=table, defaults=defaults)
