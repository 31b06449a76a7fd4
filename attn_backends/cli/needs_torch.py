"""`need_torch`: a command that runs kernels says so where torch is missing, before anything of it ends in a traceback."""

from __future__ import annotations

import importlib

from attn_backends.cli.failure import Failure
from attn_backends.cli.install_hint import install_hint


def need_torch(why: str) -> None:
    """Raise Failure unless torch can be imported; `why` is what it is needed for, as the start of a sentence."""
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:  # a shared library that is missing is an OSError
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        said = "torch is not installed" if missing else f"torch cannot be imported: {error}"
        raise Failure(f"{why}, and {said}", install_hint("torch")) from None
