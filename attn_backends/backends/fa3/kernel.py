"""The forward operator of an installed FlashAttention-3, found at import: importing this module is what loads it.

`fa3_fwd_interface` (package `fa3-fwd`) and `flash_attn_interface` (upstream's own build) hold one operator under
different names. It is called by itself and not through their Python functions: those allocate the output, the operator
writes into one that it is given.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

BUILDS = {  # module: what it calls its operators, by version
    "fa3_fwd_interface": ("fa3_fwd_cuda",),
    "flash_attn_interface": ("flash_attn_3_gpu", "flash_attn_3_cuda"),
}


def find_forward() -> Callable[..., Any]:
    """`fwd(q, k, v, *, out, cu_seqlens_q, ...) -> (out, lse, out_accum, lse_accum)` of the first build installed.

    Raises ImportError where there is none, or where the one that is there does not load.
    """
    for module, names in BUILDS.items():
        if importlib.util.find_spec(module) is None:
            continue
        try:
            found: Callable[..., Any] = _operators(importlib.import_module(module), names).fwd
        except Exception as error:
            raise ImportError(
                f"{module} is installed and does not load ({type(error).__name__}: {error}); it has to be built for the "
                f"CUDA version of torch {torch.__version__}: reinstall both together, or uninstall it"
            ) from error
        return found
    raise ImportError(f"no module {' or '.join(BUILDS)}: pip install fa3-fwd")


def _operators(interface: ModuleType, names: tuple[str, ...]) -> Any:
    held = [getattr(interface, name) for name in names if hasattr(interface, name)]
    if not held:
        raise AttributeError(f"it holds no {' or '.join(names)}")
    return held[0]


forward = find_forward()
