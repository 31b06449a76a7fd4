"""What is used of numba, imported under a numpy that has left it behind.

Up to 0.68.0, and numba-cuda up to 0.30 at least, numba looks for `numpy.row_stack` while it is imported, and asks numpy for
things that warn; numpy 2.5 has no such name. It is lent for the import, together with the modules that come later.
numba decides at its import whether it simulates a GPU (`SIMULATED`).
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
def names_that_numba_expects() -> Iterator[None]:
    """While numba is imported, or compiles."""
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


def imported(name: str) -> Any:
    """A module of numba's, and those that it imports later."""
    with names_that_numba_expects():
        module = importlib.import_module(name)
        for late in _LATE:
            with suppress(ModuleNotFoundError):
                importlib.import_module(late)
    return module


def require_compiler() -> None:
    """Raise where numba has no compiler for GPUs. Its NVVM is a library of its own, found only when it is asked for."""
    try:
        imported("numba.cuda.cudadrv.nvvm").NVVM()
    except Exception as error:
        raise ImportError(
            f"numba finds no NVVM: {error}; install numba-cuda[cu13], with nvidia-nvvm of the CUDA version that nvidia-smi shows"
        ) from error


cuda = imported("numba.cuda")
types = imported("numba.cuda.types")
SIMULATED = bool(imported("numba").config.ENABLE_CUDASIM)
