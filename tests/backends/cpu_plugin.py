"""A GPU backend as a plugin for a CPU, where an interpreter or a simulator runs it: another manifest, the same adapter."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

Changes = tuple[tuple[str, str], ...]  # text of the manifest, and what stands there instead


def lay_out(site: Path, name: str, of: str, changes: Changes) -> None:
    """The plugin `name` of the built-in backend `of` in a folder of the import path, as pip would leave it.

    Raises ValueError where the manifest no longer says what is to be changed.
    """
    package = site / f"{name}_pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f'"""{of} on a CPU."""\n', encoding="utf-8")
    (package / "backend.toml").write_text(changed_manifest(name, of, changes), encoding="utf-8")
    metadata = site / f"{name}-1.0.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.0\n", encoding="utf-8")
    entry = f"[attn_backends.backends]\n{name} = {name}_pkg:backend.toml\n"
    (metadata / "entry_points.txt").write_text(entry, encoding="utf-8")


def changed_manifest(name: str, of: str, changes: Changes) -> str:
    """The manifest of `of`, named `name` and for a CPU, with the changes."""
    text = (files(f"attn_backends.backends.{of}") / "backend.toml").read_text(encoding="utf-8")
    for old, new in ((f'name = "{of}"', f'name = "{name}"'), ('device = ["cuda"]', 'device = ["cpu"]'), *changes):
        if old not in text:
            raise ValueError(f"the manifest of {of} does not say {old!r}")
        text = text.replace(old, new)
    return text
