"""Who runs the tasks: numba's threads, as many as torch has; in the child of a fork that left such threads behind, one thread.

GNU's OpenMP, numba's usual layer on Linux, ends a forked child at its first parallel loop. What a child may ask of other
layers is not worth knowing: servers that fork have a child per core.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numba
import torch

_left_behind = False


def side_by_side() -> bool:
    """Whether tasks may run in several threads: not where a fork left numba's threads behind."""
    return not _left_behind


@contextmanager
def team() -> Iterator[None]:
    """As many of numba's threads as torch has, one task at a time each; the caller's own number is put back."""
    if _left_behind:
        yield
        return
    before = numba.get_num_threads()
    numba.set_num_threads(max(1, min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)))
    try:
        with numba.parallel_chunksize(1):
            yield
    finally:
        numba.set_num_threads(before)


def _note_fork() -> None:
    global _left_behind
    _left_behind = _left_behind or _have_started()


def _have_started() -> bool:
    try:
        numba.threading_layer()
    except ValueError:  # nobody ran anything parallel so far
        return False
    return True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
