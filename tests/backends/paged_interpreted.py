"""paged_decode under Triton's interpreter, as a plugin for machines without a GPU.

    python -m tests.backends.paged_interpreted FOLDER
    TRITON_INTERPRET=1 PYTHONPATH=FOLDER attn-backends conformance run paged_interpreted

The same adapter and the same box, but for a CPU, and without bfloat16, in which the interpreter is silently wrong.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

NAME = "paged_interpreted"
_CHANGES = (
    ('name = "paged_decode"', f'name = "{NAME}"'),
    ('device = ["cuda"]', 'device = ["cpu"]'),
    ('arch = ["9.0"]', 'arch = "any"'),
    ('dtype = ["float16", "bfloat16", "float32"]', 'dtype = ["float16", "float32"]'),
    ('out_dtype = ["same", "float16", "bfloat16", "float32"]', 'out_dtype = ["same", "float16", "float32"]'),
    ('check = "attn_backends.backends.paged_decode.limits:check"\n', ""),
)


def manifest() -> str:
    """The manifest of paged_decode with what differs on a CPU. Raises ValueError where it no longer says that."""
    text = (files("attn_backends.backends.paged_decode") / "backend.toml").read_text(encoding="utf-8")
    for old, new in _CHANGES:
        if old not in text:
            raise ValueError(f"paged_decode's manifest does not say {old!r}")
        text = text.replace(old, new)
    return text


def lay_out(site: Path) -> None:
    """The package and its metadata in a folder of the import path, as pip would leave them."""
    package = site / f"{NAME}_pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""paged_decode, interpreted."""\n', encoding="utf-8")
    (package / "backend.toml").write_text(manifest(), encoding="utf-8")
    metadata = site / f"{NAME}-1.0.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0.0\n", encoding="utf-8")
    entry = f"[attn_backends.backends]\n{NAME} = {NAME}_pkg:backend.toml\n"
    (metadata / "entry_points.txt").write_text(entry, encoding="utf-8")


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
