"""triton_tiled under Triton's interpreter, as a plugin for machines without a GPU.

    python -m tests.backends.triton_interpreted FOLDER
    TRITON_INTERPRET=1 PYTHONPATH=FOLDER attn-backends conformance run triton_interpreted

The same adapter and the same boxes, but for a CPU, and without bfloat16, in which the interpreter is silently wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.backends.cpu_plugin import lay_out

CHANGES = (
    ('arch = { min = "8.0", max = "12.1" }', 'arch = "any"'),
    ('dtype = ["float16", "bfloat16", "float32"]', 'dtype = ["float16", "float32"]'),
    ('out_dtype = ["same", "float16", "bfloat16", "float32"]', 'out_dtype = ["same", "float16", "float32"]'),
    ('graph = "always"\n', ""),
    ('check = "attn_backends.backends.triton_tiled.limits:check"\n', ""),
)

if __name__ == "__main__":
    lay_out(Path(sys.argv[1]), "triton_interpreted", "triton_tiled", CHANGES)
