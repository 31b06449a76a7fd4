"""Configs from disk: a `config.json`, a folder that holds one, or a shipped one by name.

The shipped ones (`configs/*.json`) hold published numbers of public models, only the keys that define structure;
`_source` says whose, and nobody reads it.
"""

from __future__ import annotations

import difflib
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from attn_backends.planning.errors import ConfigError

MAX_BYTES = 16 * 2**20
LISTED = "`attn-backends plan --shipped` lists the configs that come with the package"


def shipped() -> tuple[str, ...]:
    """Names of the shipped configs, sorted."""
    return tuple(sorted(file.name.removesuffix(".json") for file in _folder().iterdir() if file.name.endswith(".json")))


def load_config(path_or_name: str | Path) -> dict[str, Any]:
    """Read a config: a file, a folder with `config.json`, or the name of a shipped one; what is on disk goes first.

    Raises ConfigError: nothing of that name (with the shipped names that are near), unreadable, not JSON, not an object.
    """
    text = str(path_or_name)
    found = _on_disk(Path(text)) if "\0" not in text else None
    if found is not None:
        return _parsed(_read(found), str(found))
    names = shipped()
    if text.lower() in names:
        return _parsed((_folder() / f"{text.lower()}.json").read_bytes(), text)
    near = difflib.get_close_matches(text.lower(), names, n=3, cutoff=0.4)
    nearest = f"; nearest shipped: {', '.join(near)}" if near else ""
    said = f"no such file, no folder with a config.json, and no shipped config of that name{nearest}"
    raise ConfigError(said, where=text, hint=LISTED)


def _folder() -> Any:
    return files("attn_backends.planning") / "configs"


def _on_disk(path: Path) -> Path | None:
    try:
        if path.is_dir():
            return path / "config.json" if (path / "config.json").exists() else None
        return path if path.exists() else None
    except OSError:
        return None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES} bytes: not a model config", where=str(path))
    return data


def _parsed(data: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        hint = f"correct line {error.lineno} of {Path(where).name}"
        raise ConfigError(f"not JSON, line {error.lineno}: {error.msg}", where=where, hint=hint) from None
    except (UnicodeDecodeError, RecursionError, ValueError):
        raise ConfigError(
            "not JSON: not UTF-8 text, nested too deep, or a number of absurd length", where=where
        ) from None
    if not isinstance(value, dict):
        raise ConfigError(f"a config is a JSON object; got {type(value).__name__}", where=where)
    return value
