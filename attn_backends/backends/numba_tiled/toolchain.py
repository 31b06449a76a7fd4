"""`cuda` and types: numba's, imported under a numpy that has left it behind.

Up to 0.68.0, and numba-cuda up to 0.30 at least, numba looks for `numpy.row_stack` while it is imported, and asks numpy for
things that warn; numpy 2.5 has no such name. It is lent for the import, together with the modules that come later.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

_LATE = (
    "numba.np.arrayobj",
    "numba.cuda.np.arrayobj",
)  # imported at the first compilation; the simulator has no second


@contextmanager
def _names_that_numba_expects() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        missing = not hasattr(np, "row_stack")
        if missing:
            setattr(np, "row_stack", np.vstack)  # noqa: B010  # no type checker knows it
        try:
            yield
        finally:
            if missing:
                delattr(np, "row_stack")


def _imported() -> Any:
    with _names_that_numba_expects():
        numba = importlib.import_module("numba")
        importlib.import_module("numba.cuda")
        for name in _LATE:
            with suppress(ModuleNotFoundError):
                importlib.import_module(name)
    return numba


_numba = _imported()
# A caller of `attention` cannot choose the grid, so no warning about its size.
_numba.cuda.core.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
cuda, float32, int64 = _numba.cuda, _numba.float32, _numba.int64
