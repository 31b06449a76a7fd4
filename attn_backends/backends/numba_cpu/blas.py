"""One thread per BLAS call: the tasks are what runs side by side, and products inside them are small.

The library is scipy's, through which numba multiplies. Its number of threads belongs to the whole process, so it is put
back after the call; calls of several threads take turns meanwhile, and a fork waits for the turn, so that no child starts
with a lock that nobody releases or with a setting that nobody puts back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import scipy
import scipy.linalg.cython_blas  # loads the library that is looked for
from threadpoolctl import ThreadpoolController

_turn = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_turn.acquire, after_in_parent=_turn.release, after_in_child=_turn.release)


@contextmanager
def in_turn() -> Iterator[None]:
    """Alone, with one thread per product."""
    with _turn:
        libraries = _libraries()
        before = [library.get_num_threads() for library in libraries]
        for library in libraries:
            library.set_num_threads(1)
        try:
            yield
        finally:
            for library, count in zip(libraries, before, strict=True):
                library.set_num_threads(count)


@cache
def _libraries() -> tuple[Any, ...]:
    """Those that came with scipy, or all where none did (a distribution's own)."""
    found = [one for one in ThreadpoolController().lib_controllers if one.user_api == "blas"]
    home = Path(scipy.__file__).parent
    near = [one for one in found if Path(one.filepath).is_relative_to(home) or f"{home.name}.libs" in one.filepath]
    return tuple(near or found)
