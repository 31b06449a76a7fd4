"""The compiled kernel: one per storage (float32, 16 bits) and way to run tasks; on disk, under a name of all it is made of.

numba's own cache looks at the file of the compiled function alone, so a change in another file of this package would go
unnoticed; and it would write beside the sources. `NUMBA_CACHE_DIR` is kept where it is set. A folder that cannot be
written costs the time of compiling, nothing else.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numba
import platformdirs
from numba import types

from attn_backends.backends.numba_cpu.driver import attend_all, attend_in_order

LOG = logging.getLogger("attn_backends")
Kernel = Callable[..., None]


@cache
def kernel(storage: str, side_by_side: bool) -> Kernel:
    """The kernel for q, k and v stored as "float32" or "uint16", for several threads or one. Call it in turn (blas.py)."""
    with _cache_folder() as folder:
        known = None if folder is None else folder / f"{storage}-{'many' if side_by_side else 'one'}.known"
        if known is None or not known.exists():
            LOG.warning("numba_cpu compiles its kernel for %s: some ten seconds, once per machine", storage)
        try:
            made = _compiled(storage, side_by_side, cached=folder is not None)
            if known is not None:
                known.touch()
            return made
        except Exception:  # of any kind where a file in the cache is torn; OSError where the disk is full
            if folder is None:
                raise
            shutil.rmtree(folder, ignore_errors=True)
            return _compiled(storage, side_by_side, cached=False)


def _compiled(storage: str, side_by_side: bool, *, cached: bool) -> Kernel:
    compiler = numba.njit([_signature(storage)], parallel=side_by_side, nogil=True, fastmath=False, cache=cached)
    made: Kernel = compiler(attend_all if side_by_side else attend_in_order)
    return made


def _signature(storage: str) -> Any:
    """Any strides everywhere: one compilation serves them all."""

    def array(name: str, dims: int) -> Any:
        return types.Array(getattr(types, name), dims, "A")

    stored = [array(storage, 4)] * 3
    masks = [array("float32", 4), *[array("uint8", 4)] * 3, array("float32", 2), array("float32", 1)]
    results = [array("float32", 4), array("float32", 3)]
    return types.void(
        array("int64", 2), *stored, array("int32", 2), *masks, array("int64", 1), array("float32", 1), *results
    )


@contextmanager
def _cache_folder() -> Iterator[Path | None]:
    """Let numba keep what is compiled inside in our folder; None where that cannot be written."""
    before = numba.config.CACHE_DIR
    folder = Path(before or platformdirs.user_cache_dir("attn-backends")) / f"numba_cpu-{_digest()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        kept = os.access(folder, os.W_OK)
    except OSError:
        kept = False
    numba.config.CACHE_DIR = str(folder)
    try:
        yield folder if kept else None
    finally:
        numba.config.CACHE_DIR = before


def _digest() -> str:
    """Of this package's sources and of numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(files(__package__).iterdir(), key=lambda one: one.name):
        if source.name.endswith(".py"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]
