"""The project that `attn-backends new NAME` writes: which files, from which templates, and which names are legal.

Templates are shipped text files; `%%{name}` in them is replaced. Nothing that is there is ever overwritten.
"""

from __future__ import annotations

import importlib.resources
import keyword
import re
import string
import sys
from pathlib import Path

from attn_backends import __version__
from attn_backends.errors import AttnBackendsError
from attn_backends.registry.discovery import BUILTIN_FOLDER

# Path in the project -> template.
FILES = {
    "pyproject.toml": "pyproject.toml.tmpl",
    "README.md": "README.md.tmpl",
    ".gitignore": "gitignore.tmpl",
    ".github/workflows/conformance.yml": "workflow.yml.tmpl",
    "src/%%{name}/__init__.py": "package.py.tmpl",
    "src/%%{name}/adapter.py": "adapter.py.tmpl",
    "src/%%{name}/backend.toml": "backend.toml.tmpl",
    "tests/test_conformance.py": "test_conformance.py.tmpl",
}
TAKEN = {"attn_backends", "test", "tests", "src", "torch", "triton", "numba", "numpy", "jax", "pytest"}
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


class ScaffoldError(AttnBackendsError):
    """A project that cannot be written: the name is not legal, or something is there already."""


class _Template(string.Template):
    delimiter = "%%"


def write_project(name: str, folder: Path) -> list[Path]:
    """Write the project of a backend into `folder`, which is made. Raises ScaffoldError and leaves everything as it was."""
    check_name(name)
    texts = render(name)
    taken = [path for path in texts if (folder / path).exists() or (folder / path).is_symlink()]
    if taken:
        raise ScaffoldError(f"{folder} has {', '.join(taken)} already; nothing was written")
    written = []
    for path, text in texts.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        written.append(target)
    return written


def render(name: str) -> dict[str, str]:
    """Path -> text of every file."""
    words = {"name": name, "project": name.replace("_", "-"), "test_class": class_name(name), "version": __version__}
    folder = importlib.resources.files(__package__) / "templates"
    return {
        _Template(path).substitute(words): _Template((folder / source).read_text(encoding="utf-8")).substitute(words)
        for path, source in FILES.items()
    }


def class_name(name: str) -> str:
    """`TestMyFa` of `my_fa`."""
    return "Test" + "".join(word.capitalize() for word in name.split("_"))


def check_name(name: str) -> None:
    """Raise ScaffoldError for a name that is no backend, no Python package, or somebody else's."""
    if not _NAME.fullmatch(name):
        legal = name.lower().replace("-", "_")
        hint = f"; {legal!r} would be" if _NAME.fullmatch(legal) else ""
        raise ScaffoldError(f"{name!r} is no name for a backend: lower case letters, digits and single `_`{hint}")
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in sys.stdlib_module_names:
        raise ScaffoldError(f"{name!r} is a word of Python or a module of its library; the package would hide it")
    if name in TAKEN or (BUILTIN_FOLDER / name).is_dir():
        raise ScaffoldError(f"{name!r} is the name of another package or a built-in backend")
