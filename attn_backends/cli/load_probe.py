"""The child process of `doctor`: loads backends one by one, so that a crash of one takes neither doctor nor the rest down.

Started as `python -m attn_backends.cli.load_probe NAME...`; prints one JSON line before and one after each backend, on
the stdout it was given; what plugins print goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence

from attn_backends.errors import AttnBackendsError
from attn_backends.registry.registry import default_registry


def main(names: Sequence[str]) -> None:
    """Load each backend and say how it went."""
    report = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    registry = default_registry()
    for name in names:
        print(json.dumps({"begin": name}), file=report)
        started = time.perf_counter()
        error = None
        try:
            registry.load(name)
        except AttnBackendsError as problem:
            error = str(problem)
        print(json.dumps({"end": name, "error": error, "seconds": time.perf_counter() - started}), file=report)


if __name__ == "__main__":
    main(sys.argv[1:])
