"""numba_tiled in numba's CUDA simulator, as a plugin for machines without a GPU.

    python -m tests.backends.numba_simulated FOLDER
    NUMBA_ENABLE_CUDASIM=1 PYTHONPATH=FOLDER attn-backends conformance run numba_simulated

The same adapter and the same box, but for a CPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.backends.cpu_plugin import lay_out

CHANGES = (
    ('arch = { min = "7.5", max = "12.1" }', 'arch = "any"'),
    ('requires = ["torch>=2.6", "numba-cuda>=0.30", "numpy>=1.26"]', 'requires = ["torch>=2.6", "numba>=0.61"]'),
    ('check = "attn_backends.backends.numba_tiled.limits:check"\n', ""),
)

if __name__ == "__main__":
    lay_out(Path(sys.argv[1]), "numba_simulated", "numba_tiled", CHANGES)
