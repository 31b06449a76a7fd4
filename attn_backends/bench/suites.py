"""The suites of the benchmark, read from `suites.toml`: tables of shapes, expanded into cells."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from attn_backends.bench.cell import Cell, Store
from attn_backends.box import nearest_names
from attn_backends.errors import AttnBackendsError

METRICS = ("tflops", "kv_gbs", "ms", "us")
HOST_METRIC = "us"  # of the suite whose times are the host's alone
SIZES = ("full", "small")


class UnknownSuiteError(AttnBackendsError):
    """A suite, or a filter of cells, that names nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A list of cells and how its results are shown."""

    name: str
    doc: str
    metric: str
    axis: str
    size: str
    cells: tuple[Cell, ...]


def suite_names() -> tuple[str, ...]:
    """In the order of the file."""
    return tuple(name for name in _file() if name not in ("schema", "stores"))


def read_suite(name: str, size: str = "full") -> Suite:
    """One suite in one size. Raises UnknownSuiteError with the nearest names."""
    if name not in suite_names():
        raise UnknownSuiteError(f"no suite {name!r}; {nearest_names(name, suite_names())}")
    data = _file()[name]
    tables = data.get("small" if size == "small" else "cells", [])
    shared = {key: data[key] for key in ("passes", "numerics") if key in data}
    cells = tuple(cell for table in tables for cell in _expanded({**shared, **table}))
    return Suite(name=name, doc=data["doc"], metric=data["metric"], axis=data["axis"], size=size, cells=cells)


def chosen(suite: Suite, patterns: tuple[str, ...]) -> tuple[Cell, ...]:
    """The cells whose id holds all words of a pattern, or matches it as a glob; all of them without patterns.

    Raises UnknownSuiteError where nothing is left.
    """
    if not patterns:
        return suite.cells
    found = tuple(cell for cell in suite.cells if any(_matches(cell.id, pattern) for pattern in patterns))
    if not found:
        some = ", ".join(repr(cell.id) for cell in suite.cells[:3])
        raise UnknownSuiteError(
            f"no cell of {suite.name} matches {', '.join(map(repr, patterns))}; cells are {some}, ..."
        )
    return found


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or set(pattern.split()) <= set(name.split())


@cache
def _file() -> dict[str, Any]:
    data = tomllib.loads(Path(__file__).with_name("suites.toml").read_text(encoding="utf-8"))
    return dict(data)


def _expanded(table: dict[str, Any]) -> Iterator[Cell]:
    """Every combination of a table's lists, in their order."""
    lists = {key: value for key, value in table.items() if isinstance(value, list) and key != "numerics"}
    single = {key: value for key, value in table.items() if key not in lists}
    for values in itertools.product(*lists.values()):
        yield _KINDS[table["kind"]]({**single, **dict(zip(lists, values, strict=True))})


def _store(name: str) -> Store:
    return Store(name=name, **_file()["stores"][name])


def _shared(table: dict[str, Any]) -> dict[str, Any]:
    numerics = tuple(table.get("numerics", ("exact",)))
    return {"dtype": table.get("dtype", "bfloat16"), "passes": table.get("passes", "forward"), "numerics": numerics}


def _stored_words(store: Store) -> list[str]:
    return [] if store.name == "dense" else [store.name]


def _square(table: dict[str, Any]) -> Cell:
    head_dim, seq, causal, gqa = table["head_dim"], table["seq"], table["causal"], table.get("gqa", 1)
    store = _store(table.get("store", "dense"))
    heads = table["width"] // head_dim
    words = ["causal" if causal else "full", *([f"gqa{gqa}"] if gqa > 1 else []), *_stored_words(store)]
    return Cell(
        id=" ".join([f"d{head_dim}", f"s{seq}", *words]), panel=" ".join([f"d{head_dim}", *words]), x=seq,
        phase="prefill", sequences=((max(1, table["tokens"] // seq), seq, seq),), num_q_heads=heads,
        num_kv_heads=max(1, heads // gqa), head_dim=head_dim, causal=causal, store=store, **_shared(table),
    )  # fmt: skip


def _decode(table: dict[str, Any]) -> Cell:
    batch, context, query_heads, kv_heads, head_dim = table["shape"]
    store = _store(table["store"])
    shape = f"b{batch} c{context} h{query_heads}/{kv_heads} d{head_dim}"
    return Cell(
        id=f"{shape} {store.name}", panel=store.name, x=shape, phase="decode",
        sequences=((batch, 1, context),), num_q_heads=query_heads, num_kv_heads=kv_heads, head_dim=head_dim,
        causal=True, page_size=table["page_size"], store=store, **_shared(table),
    )  # fmt: skip


def _mixed(table: dict[str, Any]) -> Cell:
    chunk, prefix, decodes, context, query_heads, kv_heads, head_dim = table["shape"]
    store = _store(table["store"])
    shape = f"{chunk}+{prefix} {decodes}x{context} h{query_heads}/{kv_heads} d{head_dim}"
    return Cell(
        id=f"{shape} {store.name}", panel=store.name, x=shape, phase="mixed",
        sequences=((1, chunk, chunk + prefix), (decodes, 1, context)), num_q_heads=query_heads,
        num_kv_heads=kv_heads, head_dim=head_dim, causal=True, page_size=table["page_size"], store=store,
        **_shared(table),
    )  # fmt: skip


_KINDS: dict[str, Callable[[dict[str, Any]], Cell]] = {"square": _square, "decode": _decode, "mixed": _mixed}
