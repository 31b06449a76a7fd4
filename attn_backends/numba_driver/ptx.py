"""PTX of a kernel: made ahead of the first call from explicit types, for one architecture, without a GPU.

Kept on disk, under a name of all that it is made of, in the user's cache folder or in `NUMBA_CACHE_DIR`. A folder that
cannot be written costs the time of compiling, nothing else. The driver makes machine code of PTX and keeps that itself.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from dataclasses import astuple
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

import platformdirs

from attn_backends.backends.numba_mma.config import Config
from attn_backends.backends.numba_mma.intrinsic import intrinsics
from attn_backends.backends.numba_mma.kernel import STAGES, kernel_of
from attn_backends.backends.numba_mma.toolchain import cuda, names_that_numba_expects, types

ADDRESSES, SIZES, REALS = 7, 22, 2  # parameters of the kernel, in its order: int64, int64, float32


def ptx_of(config: Config, arch: tuple[int, int]) -> str:
    """The kernel's PTX, from disk where it is known."""
    place = _folder() / f"{_digest(config, arch)}.ptx"
    with suppress(OSError):
        kept = place.read_text(encoding="utf-8")
        if kept.rstrip("\0\n ").endswith("}"):
            return kept
    text = compiled(config, arch)
    with suppress(OSError):
        _write(place, text)
    return text


def compiled(config: Config, arch: tuple[int, int]) -> str:
    """The kernel's PTX, made now."""
    kernel = kernel_of(config, intrinsics(STAGES, config), cuda, types.float32, types.int32)
    signature = (*[types.int64] * (ADDRESSES + SIZES), *[types.float32] * REALS)
    with names_that_numba_expects():
        text, _result = cuda.compile_ptx(kernel, signature, cc=arch, launch_bounds=(config.threads, config.blocks))
    return str(text)


def entry_of(text: str) -> str:
    """The name of the kernel in its PTX."""
    return text.partition(".entry ")[2].partition("(")[0].strip()


def _folder() -> Path:
    return Path(os.environ.get("NUMBA_CACHE_DIR") or platformdirs.user_cache_dir("attn-backends")) / "numba_mma"


def _digest(config: Config, arch: tuple[int, int]) -> str:
    """Of this package's sources, the compilers' versions, and what is compiled."""
    made_of: list[Any] = [astuple(config), arch]
    for name in ("numba-cuda", "llvmlite", "nvidia-nvvm"):
        with suppress(PackageNotFoundError):
            made_of.append((name, version(name)))
    digest = hashlib.sha256(repr(made_of).encode())
    for source in sorted(files(__package__).iterdir(), key=lambda one: one.name):
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
