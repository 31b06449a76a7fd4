"""Shorter ways to say a request: `--heads 32/8`, `--head-dim 128`, `--seq 4096`, `--kv-format scaled-fp8-e4m3`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from attn_backends.capability import FORMATS
from attn_backends.cli.request_flags import FieldOption

Fields = dict[str, Any]


class Pair(click.ParamType):  # type: ignore[type-arg]  # not generic in every click that is allowed
    """One or two whole numbers: `32`, `32/8`, `512x4096`."""

    def __init__(self, name: str, example: str) -> None:
        self.name = name
        self._example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """(first, second); a single number stands for both."""
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\d+)(?:\s*[/x+,:]\s*(\d+))?", str(value).strip())
        if found is None:
            self.fail(f"got {value!r}; allowed: {self._example}", param, ctx)
        return int(found[1]), int(found[2] or found[1])


def shorthand_options() -> list[click.Option]:
    """The options, in the section of the request."""
    return [
        FieldOption(["--heads"], type=Pair("Q/KV", "32 or 32/8"), help="query and KV heads"),
        FieldOption(["--head-dim"], type=Pair("QK/V", "128 or 192/128"), help="width of q and k heads, and of v heads"),
        FieldOption(["--seq"], type=Pair("QxK", "4096 or 512x4096"), help="longest query and key sequence, tokens"),
        FieldOption(["--kv-format"], type=click.Choice(FORMATS), help="storage format of K and V alike"),
    ]


def shorthand_fields(params: dict[str, Any]) -> Fields:
    """The fields that the shorthands of a command line stand for."""
    found: Fields = {}
    for name, spell in _SPELL.items():
        if params.get(name) is not None:
            found.update(spell(params[name]))
    return found


_SPELL: dict[str, Callable[[Any], Fields]] = {
    "heads": lambda pair: {"num_q_heads": pair[0], "num_kv_heads": pair[1]},
    "head_dim": lambda pair: {"head_dim_qk": pair[0], "head_dim_v": pair[1]},
    "seq": lambda pair: {"seq_q": pair[0], "seq_k": pair[1]},
    "kv_format": lambda name: {"k_format": name, "v_format": name},
}
