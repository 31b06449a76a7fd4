"""What the kernel is made with. Importing this module raises where numba has no compiler, and says what to install."""

from __future__ import annotations

from attn_backends.numba_driver.toolchain import cuda, imported, require_compiler, types

intrinsic = imported("numba.cuda.extending").intrinsic
require_compiler()

__all__ = ["cuda", "intrinsic", "types"]
