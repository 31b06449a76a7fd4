"""paged_decode under Triton's interpreter, as a plugin for machines without a GPU.

    python -m tests.backends.paged_interpreted FOLDER
    TRITON_INTERPRET=1 PYTHONPATH=FOLDER attn-backends conformance run paged_interpreted

The same adapter and the same box, but for a CPU, and without bfloat16, in which the interpreter is silently wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.backends.cpu_plugin import lay_out

CHANGES = (
    ('arch = ["9.0"]', 'arch = "any"'),
    ('dtype = ["float16", "bfloat16", "float32"]', 'dtype = ["float16", "float32"]'),
    ('dtype = ["float16", "bfloat16"]\n', 'dtype = ["float16"]\n'),
    ('out_dtype = ["same", "float16", "bfloat16", "float32"]', 'out_dtype = ["same", "float16", "float32"]'),
    ('check = "attn_backends.backends.paged_decode.limits:check"\n', ""),
)

if __name__ == "__main__":
    lay_out(Path(sys.argv[1]), "paged_interpreted", "paged_decode", CHANGES)
