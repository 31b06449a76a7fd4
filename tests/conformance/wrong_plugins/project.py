"""Plugin projects that are the honest one but for a few words: rendered into folders, and put where Python finds them.

python -m tests.conformance.wrong_plugins.project FOLDER        lays all of them out there
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HONEST = "honest_fa"
TABLES = ("wrong", "misbehaving")
# Where `begins` and `ends` of misbehaving.toml go in the honest kernel's `run`, and on which calls.
BEGIN = "    for b in range(len(call.q)):\n        q, k, v = sequence(call, b)\n        p, lse, _"
END = "\n\ndef sequence("
SOME_CALLS = "call.softcap == 2.0 and call.q.dtype == torch.float32 and call.block_table is None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One project. edits: (file, words of the honest one, words of this one); expected: what else its table says."""

    name: str
    story: str
    edits: tuple[tuple[str, str, str], ...]
    expected: dict[str, Any]

    def files(self) -> dict[str, str]:
        """Path in the project -> text. Raises ValueError for words that the honest project does not have."""
        texts = {str(path.relative_to(HERE / "honest")): path.read_text(encoding="utf-8") for path in _honest_files()}
        for file, old, new in self.edits:
            path = f"{HONEST}/{file}"
            if old not in texts[path]:
                raise ValueError(f"{self.name}: {path} does not say {old!r}")
            texts[path] = texts[path].replace(old, new)
        return {_renamed(path, self.name): _renamed(text, self.name) for path, text in texts.items()}


def _honest_files() -> list[Path]:
    return [path for suffix in ("py", "toml") for path in (HERE / "honest").rglob(f"*.{suffix}")]


def _renamed(text: str, name: str) -> str:
    return text.replace(HONEST, name).replace(HONEST.replace("_", "-"), name.replace("_", "-"))


def plugins_of(table: str) -> dict[str, Plugin]:
    """The plugins of a table by name."""
    rows = tomllib.loads((HERE / f"{table}.toml").read_text(encoding="utf-8"))["plugin"]
    return {row["name"]: _read(row) for row in rows}


def _read(row: dict[str, Any]) -> Plugin:
    name, story, edits = row.pop("name"), row.pop("story"), row.pop("edits", [])
    condition = "True" if row.pop("always", False) else SOME_CALLS
    for key, mark in (("begins", BEGIN), ("ends", END)):
        if key in row:
            edits.append(("kernel.py", mark, f"    if {condition}:\n        {row.pop(key)}\n{mark}"))
    return Plugin(name=name, story=story, edits=tuple(tuple(edit) for edit in edits), expected=row)


def control() -> Plugin:
    """The honest project under a name of its own."""
    return Plugin(name="honest_plugin", story="Nothing is wrong.", edits=(), expected={})


def write_project(plugin: Plugin, folder: Path) -> Path:
    """The project as its author has it: pyproject.toml beside the package. Returns its folder."""
    root = folder / plugin.name
    _write(plugin.files(), root)
    return root


def lay_out(plugin: Plugin, site: Path) -> None:
    """The package and its metadata in a folder of the import path, as pip would leave them."""
    files = plugin.files()
    project = tomllib.loads(files.pop("pyproject.toml"))["project"]
    head = {"Metadata-Version": "2.1", "Name": project["name"], "Version": project["version"]}
    entries = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    info = f"{plugin.name}-{project['version']}.dist-info"
    files[f"{info}/METADATA"] = "".join(f"{key}: {value}\n" for key, value in head.items())
    files[f"{info}/entry_points.txt"] = "\n".join(entries) + "\n"
    _write(files, site)


def _write(files: dict[str, str], folder: Path) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for one in (control(), *(plugin for table in TABLES for plugin in plugins_of(table).values())):
        lay_out(one, Path(sys.argv[1]))
