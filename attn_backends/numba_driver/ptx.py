"""PTX of a kernel, made ahead of the first call for one architecture, without a GPU, and kept on disk.

It lies under a name of all that it is made of, in the user's cache folder or in `NUMBA_CACHE_DIR`. A folder that cannot be
written costs the time of compiling, nothing else. The driver makes machine code of PTX and keeps that itself.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

import platformdirs

from attn_backends.numba_driver.toolchain import cuda, names_that_numba_expects

COMPILERS = ("numba-cuda", "llvmlite", "nvidia-nvvm")


def compiled(kernel: Any, signature: tuple[Any, ...], arch: tuple[int, int], threads: int, blocks: int) -> str:
    """The PTX of a Python function, made now: for blocks of so many threads, so many of them on a multiprocessor."""
    with names_that_numba_expects():
        text, _result = cuda.compile_ptx(kernel, signature, cc=arch, launch_bounds=(threads, blocks))
    return str(text)


def kept(package: str, what: tuple[Any, ...], make: Callable[[], str]) -> str:
    """The PTX of `what` in a package of kernels: from disk where it is known, else made."""
    place = _folder() / package.rpartition(".")[2] / f"{_digest(package, what)}.ptx"
    with suppress(OSError, UnicodeDecodeError):
        found = place.read_text(encoding="utf-8")
        if found.rstrip("\0\n ").endswith("}"):
            return found
    text = make()
    with suppress(OSError):
        _write(place, text)
    return text


def entry_of(text: str) -> str:
    """The name of the kernel in its PTX."""
    return text.partition(".entry ")[2].partition("(")[0].strip()


def _folder() -> Path:
    return Path(os.environ.get("NUMBA_CACHE_DIR") or platformdirs.user_cache_dir("attn-backends"))


def _digest(package: str, what: tuple[Any, ...]) -> str:
    """Of what is compiled, the compilers' versions, the package's sources and this package's."""
    made_of = [repr(what)]
    for name in COMPILERS:
        with suppress(PackageNotFoundError):
            made_of.append(f"{name} {version(name)}")
    digest = hashlib.sha256("\n".join(made_of).encode())
    for folder in (package, __package__):
        for source in sorted(files(folder).iterdir(), key=lambda one: one.name):
            if source.name.endswith(".py"):
                digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:24]


def _write(place: Path, text: str) -> None:
    """Whole or not at all: another process may read at the same time."""
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=place.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as written:
        written.write(text)
    Path(name).replace(place)
