"""FlashInfer itself, imported here and nowhere else; an install that does not import says what it lacks.

Its kernels are compiled when they are first planned, which needs nvcc: a failure there is FlashInfer's own error, with
a note.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def _import() -> Any:
    try:
        import flashinfer
    except Exception as error:
        raise ImportError(
            f"flashinfer is installed and does not import ({type(error).__name__}: {error}); its dependencies come with "
            f"pip install flashinfer-python, into the environment of this torch"
        ) from error
    return flashinfer


@contextmanager
def explained() -> Iterator[None]:
    """Add to an error of planning what may be behind it."""
    try:
        yield
    except Exception as error:
        error.add_note(
            "attn-backends: FlashInfer compiles a kernel at its first use; it needs nvcc (CUDA_HOME) and ninja"
        )
        raise


flashinfer = _import()
